"""Study `fikit`: gap filling over many pairs of programs, compared with an oracle."""
