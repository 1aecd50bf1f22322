"""Objectives beside each other on one model: arms, their modelled cost, what their runs came to, their gradients."""
