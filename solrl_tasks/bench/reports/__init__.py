"""What measurements leave behind: plain records, as JSON and as metrics."""
