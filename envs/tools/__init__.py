"""Tasks that are solved by calling a tool."""
