"""Probes of other tools: linear models of scikit-learn, arrays, and positions given as text."""

import zipfile
import zlib
from collections.abc import Mapping
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from tokenize import TokenError
from typing import Any, get_args

import numpy as np
from pydantic import ValidationError

from probekit.data.positions import At, PositionRule
from probekit.errors import ConfigError, DataError, UnknownNameError, nearest
from probekit.files import regular, why_unreadable
from probekit.lazy_rows import Floats, as_array, map_npy
from probekit.probes.probe_files import problems

# Linear models of scikit-learn, and whether the softmax of their scores gives class probabilities.
_LOGISTIC = "LogisticRegression LogisticRegressionCV LinearDiscriminantAnalysis"
_OTHER_LINEAR = (
    "LinearSVC RidgeClassifier RidgeClassifierCV SGDClassifier Perceptron LinearRegression Ridge "
    "RidgeCV Lasso ElasticNet"
)
LINEAR_MODELS = dict.fromkeys(_LOGISTIC.split(), True) | dict.fromkeys(_OTHER_LINEAR.split(), False)
BY_ARRAYS = (
    "Give its arrays: SavedProbe.from_arrays(model.coef_, model.intercept_, "
    "classes=model.classes_, site=..., model=...)."
)
_MOST_BYTES = 2**28  # of the parts of a .skops file, which may be compressed
# Errors that skops and NumPy raise at damaged files and at values that are no numbers; a
# RuntimeError at files that are encrypted or nested too deeply.
_OF_DAMAGED_FILES = (
    *(OSError, LookupError, TypeError, ValueError, AttributeError, RuntimeError, ImportError),
    *(zipfile.BadZipFile, zlib.error, EOFError, OverflowError, TokenError),
)


def _read_skops(path: Path) -> Any:
    """Return the object in a .skops file that has only types that skops considers safe.

    Raises:
        ConfigError: the package skops is not installed.
        DataError: the file is of another format, too large, or contains other types.
    """
    if path.suffix != ".skops":
        raise DataError(
            f"{path} is not a .skops file. Files of pickle and joblib can run code and are not "
            f"read. {BY_ARRAYS}"
        )
    try:
        data = regular(path).read_bytes()
        if find_spec("skops") is None:
            raise ConfigError(
                f"{path} needs the package skops. Install it with `pip install skops`, or give "
                f"the arrays. {BY_ARRAYS}"
            )
        from skops import io

        with zipfile.ZipFile(BytesIO(data)) as archive:
            n_bytes = sum(part.file_size for part in archive.infolist())
        if n_bytes > _MOST_BYTES:
            raise DataError(f"{path} has {n_bytes:,} bytes when decompressed. {BY_ARRAYS}")
        if unsafe := io.get_untrusted_types(data=data):
            raise DataError(f"{path} contains {unsafe[0]}, which is not read. {BY_ARRAYS}")
        return io.loads(data)
    except (ConfigError, DataError):
        raise
    except _OF_DAMAGED_FILES as error:
        raise DataError(f"{path} cannot be read: {why_unreadable(error)}. {BY_ARRAYS}") from error


def numbers_of(given: Any) -> Floats:
    """Return numbers, or those of a .npy file, in float64.

    Raises:
        DataError: the file cannot be read, or there are other values than real numbers.
    """
    is_file = isinstance(given, str | Path)
    try:
        if hasattr(given, "detach"):  # NumPy has no bfloat16
            given = given.detach().cpu()
            given = given if given.is_complex() else given.double()
        if hasattr(given, "toarray"):  # a sparse matrix, such as that of `sparsify`
            given = given.toarray()
        array = as_array(map_npy(Path(given)) if is_file else given)
        if array.dtype.kind not in "iufO":
            raise TypeError(f"it contains {array.dtype}")
        if array.dtype.kind == "O" and None in array.ravel().tolist():
            raise TypeError("it contains None")
        return array.astype(np.float64, copy=False)
    except _OF_DAMAGED_FILES as error:
        raise DataError(
            f"{given if is_file else f'A {type(given).__name__}'} cannot be read as an array: "
            f"{why_unreadable(error)}. Give real numbers, or the path of a file that np.save "
            "wrote; files of pickle and joblib are not read."
        ) from error


def linear_model(classifier: Any) -> tuple[Floats, Floats, list[str], str]:
    """Return weight and bias on raw activations, labels and kind of a fitted linear model.

    A StandardScaler before it, in a Pipeline, is folded into the weights. A path is that of a
    .skops file.

    Raises:
        ConfigError: the package skops is not installed.
        DataError: it is not a fitted linear model, or the file has other contents.
    """
    if isinstance(classifier, str | Path):
        classifier = _read_skops(Path(classifier))
    steps = [step for _, step in getattr(classifier, "steps", [("", classifier)])]
    kinds = [type(step).__name__ for step in steps] or ["An empty Pipeline"]
    kind = kinds[-1]
    if kind not in LINEAR_MODELS or set(kinds[:-1]) - {"StandardScaler"}:
        raise DataError(
            f"{' and '.join(kinds)} cannot be read as a probe. Allowed: a fitted "
            f"{', '.join(LINEAR_MODELS)}, after any number of StandardScaler in a Pipeline. "
            f"{BY_ARRAYS}"
        )
    widths = [getattr(step, "n_features_in_", None) for step in steps]
    if None in widths or len(set(widths)) > 1:
        of_steps = zip(kinds, widths, strict=True)
        parts = [f"{one} {'is not fitted' if n is None else f'has {n}'}" for one, n in of_steps]
        raise DataError(
            f"All steps must be fitted, on the same features, but {', '.join(parts)}. "
            "Fit the whole Pipeline."
        )
    *scalers, last = steps
    weight = np.atleast_2d(numbers_of(last.coef_))
    bias = np.atleast_1d(np.array(last.intercept_, dtype=np.float64))
    bias = bias if np.ndim(last.intercept_) or bias[0] else np.zeros(len(weight))  # none is 0
    is_classifier = hasattr(last, "classes_") and len(bias) == len(weight)
    if is_classifier and np.ndim(last.predict(np.zeros_like(weight[:1]))) > 1:
        raise DataError(
            f"This {kind} predicts several labels of a row. Fit a classifier for each label."
        )
    for scaler in reversed(scalers):
        arrays = [one for one in (scaler.scale_, scaler.mean_) if one is not None]
        if any(np.shape(one) != weight.shape[1:] for one in arrays):
            raise DataError("A StandardScaler lacks numbers of features. Fit the Pipeline.")
        weight = weight / (1.0 if scaler.scale_ is None else scaler.scale_)
        if scaler.with_mean:  # without it, `mean_` is computed but not subtracted
            bias -= weight @ scaler.mean_
    labels = [str(label) for label in getattr(last, "classes_", ())]
    return weight, bias, labels, kind


def position_facts(position: Any) -> dict[str, Any]:
    """Return the keys of a position, given as text of `at` or as keys of `tokens.position`.

    >>> position_facts({"share": 0.5})
    {'share': 0.5, 'at': 'share'}

    Raises:
        UnknownNameError: there is no such key or position.
        ConfigError: a value is invalid.
    """
    if not isinstance(position, str | Mapping):
        raise ConfigError(f"position is {position!r}. Give text such as 'last', or keys.")
    rule: dict[str, Any] = {"at": position} if isinstance(position, str) else dict(position)
    rule.setdefault("at", "share" if "share" in rule else None)
    keys = PositionRule.model_fields.keys() - {"between"}
    for name, allowed in [*((key, keys) for key in rule), (rule["at"], get_args(At))]:
        if name not in allowed:
            raise UnknownNameError(f"position has {name!r}. {nearest(str(name), allowed)}")
    for key, kinds in (("index", bool | str), ("offset", bool | str), ("share", bool | str | list)):
        if isinstance(rule.get(key), kinds):
            raise ConfigError(f"`{key}` is {rule[key]!r}. Give a number.")
    try:
        checked = PositionRule.model_validate(rule, strict=False)  # 3.0 is 3
        rule = {key: getattr(checked, key) for key in rule}
        if checked.share is not None:
            (rule["share"],) = checked.share
    except ValidationError as error:
        raise ConfigError(f"{problems(error)}.") from error
    return rule
