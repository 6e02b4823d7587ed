"""The page's sections, each from what was measured: a sentence that says what it comes to, then tables and charts."""
