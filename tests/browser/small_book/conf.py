"""A book of three pages: enough for tests of how pages are built and shown."""

project = "A small book"
extensions = ["myst_nb", "figure_files", "glued_formulas"]
exclude_patterns = ["_build"]
html_theme = "sphinx_book_theme"
html_context = {"default_mode": "auto"}
myst_enable_extensions = ["dollarmath"]
nb_execution_mode = "cache"
nb_execution_raise_on_error = True
