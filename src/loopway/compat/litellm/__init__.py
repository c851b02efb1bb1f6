"""LiteLLM's file shape and import names, and nothing else.

This package must not know how an exchange runs. The composition root puts it together, in this order::

    draft = settings.read(path, environ, translators=[litellm.translate])   its file shape
    litellm.install_import_names()                                           before hooks are imported
    registry.load(dotted, draft.folder, adapt=litellm.adapted)               its callback classes
    litellm.callbacks_in_code()                                              after they were imported

`file.py` has the first, `names.py` the others.
"""

from __future__ import annotations

from loopway.compat.litellm.file import is_litellm_shape, translate
from loopway.compat.litellm.names import adapted, callbacks_in_code, install_import_names

__all__ = ["adapted", "callbacks_in_code", "install_import_names", "is_litellm_shape", "translate"]
