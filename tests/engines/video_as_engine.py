"""What a real vLLM makes of clips and of the lists of frames that stand for them, as JSON.

usage: video_as_engine.py MODEL REQUESTS      (with the Python of the engine environment)

MODEL is a Qwen2-VL checkpoint. REQUESTS is a JSON list of {"loader", "clip": path, "list": path of a data URL or null,
"asked": the worker's media_io_kwargs, "sent": the request's, "process": whether to run MODEL's processor too}. Printed below
the line JSON are, in order: {"file": seen, "list": seen}, where seen is null for what is refused or not there, else has the
digest of the frames, the timing, and the digest of the model's input. Then, last, {family: whether its model is told timing}.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

# Implementation of each model_type: module and class.
MODELS = {
    "gemma4": ("gemma4_mm", "Gemma4ForConditionalGeneration"),
    "glm46v": ("glm4_1v", "Glm4vForConditionalGeneration"),
    "glm4v": ("glm4_1v", "Glm4vForConditionalGeneration"),
    "glm4v_moe": ("glm4_1v", "Glm4vMoeForConditionalGeneration"),
    "internvl": ("interns1", "InternS1ForConditionalGeneration"),
    "internvl_chat": ("internvl", "InternVLChatModel"),
    "llava_next_video": ("llava_next_video", "LlavaNextVideoForConditionalGeneration"),
    "llava_onevision": ("llava_onevision", "LlavaOnevisionForConditionalGeneration"),
    "minicpmv": ("minicpmv", "MiniCPMV"),
    "qwen2_5_vl": ("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration"),
    "qwen2_vl": ("qwen2_vl", "Qwen2VLForConditionalGeneration"),
    "qwen3_5": ("qwen3_5", "Qwen3_5ForConditionalGeneration"),
    "qwen3_5_moe": ("qwen3_5", "Qwen3_5MoeForConditionalGeneration"),
    "qwen3_vl": ("qwen3_vl", "Qwen3VLForConditionalGeneration"),
    "qwen3_vl_moe": ("qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration"),
}


def told_timing(module: str, name: str) -> bool:
    model = getattr(import_module(f"vllm.model_executor.models.{module}"), name)
    return "video_needs_metadata=True" in inspect.getsource(model._processor_factory.info.get_data_parser).replace(
        '"video_needs_metadata": True', "video_needs_metadata=True"
    )


def digest(*values: Any) -> str:
    found = hashlib.sha256()
    for value in values:
        found.update(repr((value.shape, str(value.dtype))).encode() + value.tobytes())
    return found.hexdigest()


class Engine:
    """The loaders, and the processor of one model."""

    def __init__(self, model: str) -> None:
        from vllm.config import ModelConfig  # type: ignore[import-not-found, unused-ignore]
        from vllm.multimodal import MULTIMODAL_REGISTRY  # type: ignore[import-not-found, unused-ignore]

        config = ModelConfig(model=model, limit_mm_per_prompt={"video": 1}, max_model_len=8192)
        self.processor = MULTIMODAL_REGISTRY.create_processor(config)

    def read(self, url: str, request: dict[str, Any]) -> Any:
        """The path of a chat request from the data URL on."""
        from vllm.multimodal.media import ImageMediaIO, MediaConnector, VideoMediaIO  # type: ignore[import-not-found, unused-ignore]

        kwargs = VideoMediaIO.merge_kwargs(request["asked"], request["sent"])
        media = VideoMediaIO(ImageMediaIO(), **{**kwargs, "video_backend": request["loader"]})
        return MediaConnector().load_from_url(url, media)

    def tried(self, url: str, request: dict[str, Any]) -> dict[str, Any] | None:
        """None for a clip that the engine refuses."""
        try:
            return self.seen(url, request)
        except (ValueError, ZeroDivisionError):
            return None

    def seen(self, url: str, request: dict[str, Any]) -> dict[str, Any]:
        import torch  # type: ignore[import-not-found, unused-ignore]
        from transformers.video_utils import VideoMetadata  # type: ignore[import-not-found, unused-ignore]

        media = self.read(url, request)
        frames, timing = media.media
        rate = VideoMetadata(**{key: value for key, value in timing.items() if key != "do_sample_frames"}).sampled_fps
        timing = {key: value for key, value in timing.items() if key != "video_backend"}
        found = {"frames": digest(frames), "timing": timing, "patch_seconds": torch.tensor([2 / rate]).item()}
        return found | ({"input": self.processed(media)} if request["process"] else {})

    def processed(self, media: Any) -> list[Any]:
        """The prompt's tokens, and digests of the tensors the model gets."""
        items = self.processor.info.parse_mm_data({"video": [media]})
        prompt = "<|vision_start|><|video_pad|><|vision_end|>what?"
        made = self.processor(prompt, mm_items=items)
        item = made["mm_kwargs"]["video"][0]
        tensors = {key: digest(field.data.float().numpy()) for key, field in item.items()}
        return [made["prompt_token_ids"], sorted(tensors.items())]


def main() -> None:
    from base64 import b64encode

    engine = Engine(sys.argv[1])
    answers: list[Any] = []
    for request in json.loads(Path(sys.argv[2]).read_text()):
        clip = "data:video/mp4;base64," + b64encode(Path(request["clip"]).read_bytes()).decode()
        listed = request["list"] and engine.seen(Path(request["list"]).read_text(), request)
        answers.append({"file": engine.tried(clip, request | {"sent": None}), "list": listed})
    answers.append({family: told_timing(*model) for family, model in MODELS.items()})
    print("\nJSON\n" + json.dumps(answers))


if __name__ == "__main__":
    main()
