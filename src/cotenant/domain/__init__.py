"""What is true: frozen values, their units and the measures of one noun."""
