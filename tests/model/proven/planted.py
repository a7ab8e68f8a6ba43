"""Errors planted in a model through the classes of its modules, as another file would have them."""

import inspect


def replaced(module, forward):
    """Change the forward of a module by its class.

    Args:
        module: the module.
        forward: gets the module, its original forward, and the arguments.
    """
    old = type(module)

    def new(self, *args, **kwargs):
        return forward(self, lambda *a, **k: old.forward(self, *a, **k), *args, **kwargs)

    new.__signature__ = inspect.signature(old.forward)  # the proof reads it
    module.__class__ = type(old.__name__, (old,), {"forward": new})
