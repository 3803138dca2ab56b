"""Output for people: tables in the terminal, HTML pages and manual pages."""
