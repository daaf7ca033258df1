"""What pip and an index show of the package."""

import email.parser
import importlib.util
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_the_description_is_of_a_python_package():
    spec = importlib.util.spec_from_file_location("wheel_backend", ROOT / "python" / "wheel_backend.py")
    backend = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(backend)
    metadata = email.parser.Parser().parsestr(backend._metadata("1.0"))
    assert "Typing :: Typed" in metadata.get_all("Classifier")
    assert metadata["Description-Content-Type"] == "text/markdown"
    text = metadata["Summary"] + metadata.get_payload()
    assert "import qlora_cpp" in text and "without Python" not in text
    assert "without PyTorch" not in text
