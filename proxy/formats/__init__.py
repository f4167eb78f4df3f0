"""How families of models write thoughts and calls of tools into their text, and how that is read."""
