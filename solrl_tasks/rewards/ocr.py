"""Does the image show the words that its prompt quotes? Read by optical character recognition.

RapidOCR (Apache-2.0) with the PP-OCRv6 models that lie in its package: nothing is downloaded. The models know Chinese,
Japanese and the Latin alphabet.
"""

import hashlib
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, JsonValue

from solrl_tasks.rewards.base import RewardError
from solrl_tasks.rewards.lettering import Lettering, likeness, quoted

MODELS: Final = {
    "Det": ("PP-OCRv6_det_small.onnx", "090f04abcd9d9a7498bc4ebf677e4cb9bdce1fe4197ddb7e529f1ef44e1ff94f"),
    "Cls": ("ch_ppocr_mobile_v2.0_cls_mobile.onnx", "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c"),
    "Rec": ("PP-OCRv6_rec_small.onnx", "6f327246b50388f3c176ae304bd95767ea6dc0c9ae92153ef8cbe210b3c14884"),
}
"""What version 1 of this reward reads with: files in the package and their sha256."""
INSTALL: Final = 'pip install -c constraints.txt -e ".[ocr]"'


class OcrOptions(Lettering):
    """How words are compared, how sure the reading must be to count, and how many images are read at a time."""

    confidence: Annotated[float, Field(ge=0, le=1)] = 0.5
    threads: Annotated[int, Field(ge=1, le=256)] = 1


class Ocr:
    """1 - normalised edit distance between the words in the image and those quoted in the prompt; see
    ``likeness``.

    Computes on the CPU, each image in one thread, so that a score does not depend on what else is scored. An image in
    which nothing can be read scores 0. A prompt that quotes nothing cannot be scored: its candidates are invalid.
    """

    name: ClassVar[str] = "ocr"
    version: ClassVar[str] = "1"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    Options: ClassVar[type[OcrOptions]] = OcrOptions

    def __init__(self, options: OcrOptions) -> None:
        self.options = options
        self._models = model_files()
        self._readers = threading.local()
        self._pool = ThreadPoolExecutor(options.threads, thread_name_prefix="ocr")

    @classmethod
    def identity(cls, options: OcrOptions) -> dict[str, JsonValue]:
        """The options that decide scores."""
        return options.model_dump(mode="json", exclude_defaults=True, exclude={"threads"})

    @classmethod
    def check_prompt(cls, prompt: str, metadata: Mapping[str, JsonValue], options: OcrOptions) -> None:  # noqa: ARG003
        """Raises UnquotedError where a prompt does not say which words are to be written."""
        likeness((), quoted(prompt, options.single_quotes), options)

    def __call__(
        self,
        images: NDArray[np.uint8],
        prompts: Sequence[str],
        metadata: Sequence[Mapping[str, JsonValue]],  # noqa: ARG002 (the interface's)
    ) -> list[float]:
        """Scores in 0..1 of uint8 images [B, H, W, 3].

        Raises:
            UnquotedError: a prompt does not say which words are to be written.
        """
        wanted = [quoted(prompt, self.options.single_quotes) for prompt in prompts]
        return [likeness(self.lines(image), texts, self.options) for image, texts in zip(images, wanted, strict=True)]

    def lines(self, image: NDArray[np.uint8]) -> tuple[str, ...]:
        """The lines of text in one image, uint8 [H, W, 3], from top to bottom."""
        if not hasattr(self._readers, "read"):
            # One a thread: a reader keeps the size of the image in hand.
            self._readers.read = _reader(self._models, self.options.confidence)
        # It takes arrays as OpenCV does: blue first.
        found = self._readers.read(np.ascontiguousarray(image[..., ::-1])).txts
        return tuple(found) if found else ()


def _reader(models: Mapping[str, Path], confidence: float) -> Any:
    params: dict[str, Any] = {
        "Global.log_level": "critical",
        "Global.text_score": confidence,
        "EngineConfig.onnxruntime.intra_op_num_threads": 1,
        "EngineConfig.onnxruntime.inter_op_num_threads": 1,
    }
    for part, path in models.items():
        # A path that is given is never looked for on the network.
        params[f"{part}.model_path"] = str(path)
    # Here as well as in tracking, which is above: a reward is also used by itself. A choice of the user stands.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    from rapidocr import RapidOCR

    return RapidOCR(params=params)


def model_files() -> dict[str, Path]:
    """The models in the installed package, checked.

    Raises:
        RewardError: the package is missing, or holds other models than those of this reward's version.
    """
    package = find_spec("rapidocr")
    for needed in ("rapidocr", "onnxruntime"):
        if find_spec(needed) is None:
            raise RewardError(f"reward 'ocr' needs {needed}, which is not installed: {INSTALL}")
    assert package is not None
    assert package.origin is not None
    folder = Path(package.origin).parent / "models"
    found = {part: folder / name for part, (name, _) in MODELS.items()}
    for part, path in found.items():
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != MODELS[part][1]:
            state = "holds another" if path.is_file() else "lacks the"
            raise RewardError(
                f"reward 'ocr': the installed rapidocr {state} model {path.name} that the scores of version "
                f"{Ocr.version} are made with: {INSTALL} installs the right release"
            )
    return found


REWARD = Ocr
