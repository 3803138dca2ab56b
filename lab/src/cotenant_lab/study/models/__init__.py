"""Study `models`: durations of models that were never measured, against published measurements."""
