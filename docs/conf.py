"""The documentation as a site: `make docs`. Nothing on its pages is fetched from elsewhere, and it opens from disk."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
# Notebooks' kernels are the build's own: no profile of the user's, no history, no note on their loopback connection.
os.environ["IPYTHONDIR"] = str(HERE.parent / "build" / "ipython")
profile = HERE.parent / "build" / "ipython" / "profile_default"
profile.mkdir(parents=True, exist_ok=True)
profile.joinpath("ipython_kernel_config.py").write_text(
    "c = get_config()\nc.IPKernelApp.log_level = 40\nc.HistoryManager.enabled = False\n"
)
# Notebooks' kernels find the checkout's packages, experiments among them, as conf.py does.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")]))
os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"  # notebooks' kernels are not debugged
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")  # small matrices only wait for more

import privbo  # noqa: E402  (the checkout's own, found by the path above)

project, author, copyright = "privbo", "The privbo authors", "The privbo authors"  # noqa: A001  (Sphinx's name)
version = release = privbo.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon", "site_parts"]
exclude_patterns = ["_static"]
suppress_warnings = ["config.cache"]  # functions in a configuration are not cached; nothing is lost

# Markdown, and notebooks that are written as Markdown and run with every build.
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
smartquotes_action = "qe"  # quotes and ellipses; "--set" stays an option that can be copied
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 180
nb_merge_streams = True
nb_code_prompt_show, nb_code_prompt_hide = "The code of this picture", "Hide the code"
html_math_renderer = "mathml"

# The reference: one argument a line, types where the arguments are.
python_maximum_signature_line_length = 40
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autosummary_generate = False
napoleon_numpy_docstring = False
napoleon_use_ivar = True

html_theme = "furo"
html_title = "privbo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["from_disk.js"]
html_copy_source = False
html_show_copyright = False
html_baseurl = ""
pygments_style, pygments_dark_style = "a11y-high-contrast-light", "a11y-high-contrast-dark"
