"""Study `predictor`: predicted speeds of a cluster's jobs compared with measurements, and the fit of its parameters."""
