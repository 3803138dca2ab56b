"""What will happen? Each prediction is a pure function of what was measured, and says how sure it is."""
