"""Study `device`: the software GPU's physics compared with published measurements."""
