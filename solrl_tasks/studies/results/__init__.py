"""Results of the embedded model beside the published ones: which runs they take, what these came to, how it is told."""
