"""The networks of `make zoo`: of transformers, of timm, and structures written by hand; small, with random weights."""

from __future__ import annotations

import operator
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "nn"))
from structures import STRUCTURES, randomise  # noqa: F401
from user_networks import USER_NETWORKS

Kind = Literal["cnn", "transformer", "other"]
VOCABULARY, CLASSES = 100, 10


@dataclass(frozen=True)
class Network:
    """How to make a network and an example of its input.

    `vocabulary` is the length of tables counted apart, `output` the tensor that counts, where a network gives several.
    """

    make: Callable[[], nn.Module]
    example: Callable[[], Any]
    kind: Kind
    source: Literal["transformers", "timm", "by hand"]
    vocabulary: int | None = None
    output: str | None = None


# -- transformers -----------------------------------------------------------------------------------------------------

DIMS = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 8, "intermediate_size": 512}
BERT = {**DIMS, "vocab_size": VOCABULARY, "max_position_embeddings": 32}
GROUPED = {**BERT, "num_key_value_heads": 4, "pad_token_id": None, "use_cache": False}
SEQ2SEQ = {
    **{"vocab_size": VOCABULARY, "d_model": 128, "encoder_layers": 2, "decoder_layers": 2, "use_cache": False},
    **{"encoder_attention_heads": 8, "decoder_attention_heads": 8, "encoder_ffn_dim": 512, "decoder_ffn_dim": 512},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1},
}
SPEECH = {
    **DIMS, "conv_dim": (64, 64), "conv_kernel": (10, 3), "conv_stride": (5, 2), "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 8, "layerdrop": 0.0, "mask_time_prob": 0.0,
    "classifier_proj_size": 64, "vocab_size": VOCABULARY,
}  # fmt: skip
STAGES = {"hidden_sizes": [32, 64, 128, 256], "depths": [1, 1, 1, 1]}
VIT = {**DIMS, "image_size": 32, "patch_size": 8}
WINDOWS = {"image_size": 32, "patch_size": 2, "embed_dim": 128, "depths": [2, 2], "num_heads": [8, 8], "window_size": 4}
TOWER = {**DIMS, "projection_dim": 64}
TEXT_TOWER = {**TOWER, "vocab_size": VOCABULARY, "max_position_embeddings": 16, "eos_token_id": 99}
VISION_TOWER = {**TOWER, "image_size": 32, "patch_size": 8}


def _images(size: int = 32, channels: int = 3) -> Callable[[], Tensor]:
    return lambda: torch.randn(2, channels, size, size)


def _tokens(length: int = 8) -> Tensor:
    return torch.randint(3, VOCABULARY - 1, (2, length))


def _padded() -> dict[str, Tensor]:
    """A batch as a tokenizer gives it."""
    mask = torch.ones(2, 8, dtype=torch.long)
    mask[1, 5:] = 0
    return {"input_ids": _tokens(), "attention_mask": mask, "token_type_ids": torch.zeros(2, 8, dtype=torch.long)}


def _translated() -> dict[str, Tensor]:
    return {"input_ids": _tokens(), "decoder_input_ids": _tokens(6)}


def _captioned() -> dict[str, Tensor]:
    return {"input_ids": _tokens(), "pixel_values": _images()()}


def _waveform() -> Tensor:
    return torch.randn(2, 400)


def _transformers(
    model: str,
    model_type: str,
    example: Callable[[], Any],
    kind: Kind = "transformer",
    output: str | None = None,
    **config: Any,
) -> Network:
    def make() -> nn.Module:
        import transformers

        made = transformers.AutoConfig.for_model(model_type, num_labels=CLASSES, **config)
        return getattr(transformers, model)(made)  # type: ignore[no-any-return]

    vocabulary = VOCABULARY if "vocab_size" in str(config) else None
    return Network(make, example, kind, "transformers", vocabulary, output)


TRANSFORMERS: dict[str, Network] = {
    # vision
    "vit": _transformers("ViTForImageClassification", "vit", _images(), **VIT),
    "deit": _transformers("DeiTForImageClassificationWithTeacher", "deit", _images(), **VIT),
    "beit": _transformers("BeitForImageClassification", "beit", _images(), **VIT, use_relative_position_bias=True),
    "dinov2": _transformers("Dinov2ForImageClassification", "dinov2", _images(), **VIT),
    "ijepa": _transformers("IJepaForImageClassification", "ijepa", _images(), **VIT),
    "swin": _transformers("SwinForImageClassification", "swin", _images(), **WINDOWS),
    "swinv2": _transformers("Swinv2ForImageClassification", "swinv2", _images(), **WINDOWS),
    "pvt": _transformers(
        "PvtForImageClassification", "pvt", _images(), image_size=32, depths=[1, 1, 1, 1],
        hidden_sizes=[128] * 4, num_attention_heads=[8] * 4, mlp_ratios=[4] * 4, sequence_reduction_ratios=[2, 2, 1, 1],
    ),
    "segformer": _transformers(
        "SegformerForSemanticSegmentation", "segformer", _images(64), depths=[1, 1, 1, 1], decoder_hidden_size=128,
        hidden_sizes=[128] * 4, num_attention_heads=[8] * 4, mlp_ratios=[4] * 4, sr_ratios=[4, 2, 2, 1],
    ),
    "mobilevit": _transformers(
        "MobileViTForImageClassification", "mobilevit", _images(64), num_attention_heads=8,
        hidden_sizes=[128] * 3, neck_hidden_sizes=[32, 32, 64, 96, 128, 128, 256],
    ),
    "convnext": _transformers("ConvNextForImageClassification", "convnext", _images(64), "cnn", **STAGES),
    "convnextv2": _transformers("ConvNextV2ForImageClassification", "convnextv2", _images(64), "cnn", **STAGES),
    "resnet": _transformers(
        "ResNetForImageClassification", "resnet", _images(64), "cnn", **STAGES, embedding_size=32, layer_type="basic"
    ),
    "resnet bottleneck": _transformers(
        "ResNetForImageClassification", "resnet", _images(64), "cnn", **STAGES, embedding_size=32
    ),
    "bit": _transformers(
        "BitForImageClassification", "bit", _images(64), "cnn", **STAGES, embedding_size=32,
        num_groups=4,
    ),
    "regnet": _transformers(
        "RegNetForImageClassification", "regnet", _images(64), "cnn", **STAGES, embedding_size=32, groups_width=16
    ),
    "mobilenet_v1": _transformers("MobileNetV1ForImageClassification", "mobilenet_v1", _images(64), "cnn"),
    "mobilenet_v2": _transformers("MobileNetV2ForImageClassification", "mobilenet_v2", _images(64), "cnn"),
    "poolformer": _transformers(
        "PoolFormerForImageClassification", "poolformer", _images(64), "cnn", depths=[1, 1, 1, 1],
        hidden_sizes=[32, 64, 128, 256],
    ),
    "levit": _transformers(
        "LevitForImageClassification", "levit", _images(64), image_size=64, hidden_sizes=[128, 128, 128],
        depths=[1, 1, 1], num_attention_heads=[8, 8, 8], key_dim=[16, 16, 16],
    ),
    # text
    "bert": _transformers("BertForSequenceClassification", "bert", _tokens, **BERT),
    "bert with a mask": _transformers("BertForSequenceClassification", "bert", _padded, **BERT),
    "bert, masked words": _transformers("BertForMaskedLM", "bert", _tokens, **BERT),
    "distilbert": _transformers(
        "DistilBertForSequenceClassification", "distilbert", _tokens, vocab_size=VOCABULARY, dim=128, n_layers=2,
        n_heads=8, hidden_dim=512, max_position_embeddings=32,
    ),
    "roberta": _transformers("RobertaForSequenceClassification", "roberta", _tokens, **BERT, pad_token_id=1),
    "albert": _transformers("AlbertForSequenceClassification", "albert", _tokens, **BERT, embedding_size=64),
    "electra": _transformers("ElectraForSequenceClassification", "electra", _tokens, **BERT, embedding_size=64),
    "deberta-v2": _transformers(
        "DebertaV2ForSequenceClassification", "deberta-v2", _tokens, **BERT, relative_attention=True,
        pos_att_type=["c2p", "p2c"],
    ),
    "mpnet": _transformers("MPNetForSequenceClassification", "mpnet", _tokens, **BERT),
    "modernbert": _transformers(
        "ModernBertForSequenceClassification", "modernbert", _tokens, **BERT, pad_token_id=0, eos_token_id=2,
        bos_token_id=1, cls_token_id=1, sep_token_id=2,
    ),
    "gpt2": _transformers(
        "GPT2LMHeadModel", "gpt2", _tokens, vocab_size=VOCABULARY, n_positions=32, n_embd=128, n_layer=2, n_head=8,
        use_cache=False,
    ),
    "gpt_neo": _transformers(
        "GPTNeoForCausalLM", "gpt_neo", _tokens, vocab_size=VOCABULARY, hidden_size=128, num_layers=2, num_heads=8,
        attention_types=[[["global", "local"], 1]], max_position_embeddings=32, use_cache=False,
    ),
    "gpt_neox": _transformers("GPTNeoXForCausalLM", "gpt_neox", _tokens, **BERT, use_cache=False),
    "opt": _transformers(
        "OPTForCausalLM", "opt", _tokens, vocab_size=VOCABULARY, hidden_size=128, num_hidden_layers=2, ffn_dim=512,
        num_attention_heads=8, word_embed_proj_dim=128, max_position_embeddings=32, use_cache=False,
    ),
    "bloom": _transformers(
        "BloomForCausalLM", "bloom", _tokens, vocab_size=VOCABULARY, hidden_size=128, n_layer=2, n_head=8,
        use_cache=False,
    ),
    "llama": _transformers("LlamaForCausalLM", "llama", _tokens, **GROUPED),
    "mistral": _transformers("MistralForCausalLM", "mistral", _tokens, **GROUPED),
    "qwen2": _transformers("Qwen2ForCausalLM", "qwen2", _tokens, **GROUPED),
    "qwen3": _transformers("Qwen3ForCausalLM", "qwen3", _tokens, **GROUPED, head_dim=16),
    "gemma2": _transformers("Gemma2ForCausalLM", "gemma2", _tokens, **GROUPED, head_dim=16),
    "phi": _transformers("PhiForCausalLM", "phi", _tokens, **GROUPED),
    "phi3": _transformers("Phi3ForCausalLM", "phi3", _tokens, **GROUPED),
    "stablelm": _transformers("StableLmForCausalLM", "stablelm", _tokens, **GROUPED),
    "mixtral": _transformers("MixtralForCausalLM", "mixtral", _tokens, **GROUPED, num_local_experts=2),
    "t5": _transformers(
        "T5ForConditionalGeneration", "t5", _translated, output="logits", vocab_size=VOCABULARY, d_model=128, d_kv=16,
        d_ff=512, num_layers=2, num_heads=8, use_cache=False,
    ),
    "bart": _transformers(
        "BartForConditionalGeneration", "bart", _translated, output="logits", **SEQ2SEQ, max_position_embeddings=32,
    ),
    "mamba": _transformers(
        "MambaForCausalLM", "mamba", _tokens, vocab_size=VOCABULARY, hidden_size=128, num_hidden_layers=2,
        use_cache=False,
    ),
    # audio
    "wav2vec2": _transformers("Wav2Vec2ForSequenceClassification", "wav2vec2", _waveform, **SPEECH),
    "hubert": _transformers("HubertForSequenceClassification", "hubert", _waveform, **SPEECH),
    "wavlm": _transformers("WavLMForSequenceClassification", "wavlm", _waveform, **SPEECH),
    "audio-spectrogram-transformer": _transformers(
        "ASTForAudioClassification", "audio-spectrogram-transformer", lambda: torch.randn(2, 32, 16), **DIMS,
        max_length=32, num_mel_bins=16, patch_size=8, time_stride=8, frequency_stride=8,
    ),
    "whisper": _transformers(
        "WhisperForConditionalGeneration", "whisper",
        lambda: {"input_features": torch.randn(2, 16, 32), "decoder_input_ids": _tokens(6)}, output="logits", **SEQ2SEQ,
        num_mel_bins=16, max_source_positions=16, max_target_positions=16,
    ),
    # multimodal
    "clip": _transformers(
        "CLIPModel", "clip", _captioned, output="logits_per_image", text_config=TEXT_TOWER, vision_config=VISION_TOWER,
        projection_dim=64,
    ),
    "siglip": _transformers("SiglipModel", "siglip", _captioned, output="logits_per_image",
        text_config=TEXT_TOWER, vision_config=VISION_TOWER),
    "blip": _transformers(
        "BlipForImageTextRetrieval", "blip", _captioned, output="itm_score", text_config=TEXT_TOWER,
        vision_config=VISION_TOWER, image_text_hidden_size=64,
    ),
    "vilt": _transformers("ViltForQuestionAnswering", "vilt", _captioned, **VIT, vocab_size=VOCABULARY),
    "chinese_clip": _transformers(
        "ChineseCLIPModel", "chinese_clip", _captioned, output="logits_per_image",
        text_config={**BERT, "pad_token_id": 0}, vision_config=VISION_TOWER, projection_dim=64,
    ),
    "llava": _transformers(
        "LlavaForConditionalGeneration", "llava",
        lambda: _captioned() | {"input_ids": torch.cat((torch.full((2, 16), VOCABULARY - 1), _tokens()), 1)},
        text_config={**GROUPED, "model_type": "llama"},
        vision_config={**VISION_TOWER, "model_type": "clip_vision_model"},
        output="logits", image_token_index=VOCABULARY - 1, vision_feature_select_strategy="default",
    ),
}  # fmt: skip


# -- timm -------------------------------------------------------------------------------------------------------------


def import_timm() -> Any:
    """timm, with a stand-in for torchvision where that is missing: of it timm's models need nothing."""

    class Anything(type):
        def __getattr__(cls, name: str) -> str:
            if name.startswith("__"):
                raise AttributeError(name)
            return name

    class Absent(types.ModuleType):
        __path__: ClassVar[list[str]] = []

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return sys.modules.get(f"{self.__name__}.{name}") or Anything(name, (), {})

    try:
        import torchvision  # noqa: F401
    except ImportError:
        parts = ("datasets", "io", "models", "ops", "ops.misc", "transforms", "transforms.functional", "utils")
        stand_ins = {name: Absent(name) for name in ("torchvision", *(f"torchvision.{part}" for part in parts))}
        sys.modules |= stand_ins
        import timm

        for name in stand_ins:
            del sys.modules[name]
    import timm

    return timm


def _timm(name: str, kind: Kind = "cnn", size: int = 64, **config: Any) -> Network:
    def make() -> nn.Module:
        return import_timm().create_model(name, num_classes=CLASSES, **config)  # type: ignore[no-any-return]

    return Network(make, _images(size), kind, "timm")


def _timm_class(name: str, kind: Kind = "transformer", **config: Any) -> Network:
    """A family whose constructor by name takes no sizes; dotted strings are names in timm.models."""

    def make() -> nn.Module:
        models = import_timm().models
        found = {
            key: operator.attrgetter(value)(models) if isinstance(value, str) else value
            for key, value in config.items()
        }
        return operator.attrgetter(name)(models)(num_classes=CLASSES, **found)  # type: ignore[no-any-return]

    return Network(make, _images(64), kind, "timm")


SMALL_VIT: dict[str, Any] = {"kind": "transformer", "img_size": 64, "embed_dim": 128, "depth": 2, "num_heads": 8}
NARROW = {"depths": (1, 1, 1, 1), "dims": (32, 64, 128, 256)}
TIMM: dict[str, Network] = {
    "timm resnet18": _timm("resnet18", channels=(32, 64, 128, 256)),
    "timm seresnet18": _timm("seresnet18", channels=(32, 64, 128, 256)),
    "timm dla34": _timm("dla34", channels=(16, 32, 32, 64, 128, 256)),
    "timm xception": _timm("xception41"),
    "timm hrnet": _timm("hrnet_w18_small"),
    "timm convnext": _timm("convnext_atto", **NARROW),
    "timm vit": _timm("vit_tiny_patch16_224", **SMALL_VIT),
    "timm swin": _timm(
        "swin_tiny_patch4_window7_224", "transformer", img_size=64, window_size=4, embed_dim=128, depths=(2, 2),
        num_heads=(8, 8),
    ),
    "timm beit": _timm("beit_base_patch16_224", **SMALL_VIT),
    "timm poolformer": _timm_class(
        "metaformer.MetaFormer", "cnn", **NARROW, norm_layers="metaformer.GroupNorm1",
        downsample_norm=None, token_mixers="metaformer.Pooling", layer_scale_init_values=1e-5, use_mlp_head=False,
    ),
    "timm deit": _timm("deit_tiny_distilled_patch16_224", **SMALL_VIT),
    "timm cait": _timm("cait_xxs24_224", **SMALL_VIT),
    "timm nfnet": _timm("nfnet_l0", depths=(1, 1, 1, 1)),
    "timm fastvit": _timm("fastvit_t8", embed_dims=(32, 64, 128, 256)),
    "timm edgenext": _timm("edgenext_xx_small", "transformer"),
    "timm maxvit": _timm("maxvit_rmlp_pico_rw_256", "transformer", img_size=64),
    "timm efficientnet": _timm("efficientnet_b0"),
    "timm mobilenetv3": _timm("mobilenetv3_small_100"),
    "timm regnety": _timm("regnety_002"),
    "timm ghostnet": _timm("ghostnet_100"),
    "timm densenet": _timm("densenet121", growth_rate=16, block_config=(2, 2, 2, 2)),
    "timm regnetx": _timm("regnetx_002"),
    "timm repvgg": _timm("repvgg_a0"),
    "timm mobilenetv2": _timm("mobilenetv2_050"),
    "timm mobilenetv4": _timm("mobilenetv4_conv_small_050"),
    "timm resnext": _timm("resnext26ts"),
    "timm inception_v3": _timm("inception_v3", size=96),
    "timm dpn": _timm("dpn48b"),
    "timm vovnet": _timm("ese_vovnet19b_slim"),
    "timm vgg11_bn": _timm("vgg11_bn", mlp_ratio=0.05),
    "timm efficientvit": _timm("efficientvit_b0", "transformer"),
    "timm mobilevit": _timm("mobilevit_xxs", "transformer"),
    "timm mixer": _timm_class("mlp_mixer.MlpMixer", img_size=64, patch_size=8, embed_dim=128, num_blocks=2),
    "timm resmlp": _timm_class(
        "mlp_mixer.MlpMixer", img_size=64, patch_size=8, embed_dim=128, num_blocks=2, mlp_ratio=4,
        block_layer="mlp_mixer.ResBlock", norm_layer="mlp_mixer.Affine",
    ),
    "timm levit": _timm("levit_128s", "transformer", size=224),
    "timm xcit": _timm("xcit_nano_12_p16_224", "transformer", img_size=64, embed_dim=128, depth=2, num_heads=8),
    "timm pvt_v2": _timm(
        "pvt_v2_b0", "transformer", embed_dims=(128,) * 4, depths=(1,) * 4, num_heads=(8,) * 4, mlp_ratios=(4,) * 4,
    ),
    "timm twins": _timm(
        "twins_svt_small", "transformer", img_size=64, embed_dims=(128,) * 4, depths=(2,) * 4, num_heads=(8,) * 4,
        mlp_ratios=(4,) * 4, wss=(2, 2, 2, 2),
    ),
    "timm res2net": _timm("res2net50d", layers=(1, 1, 1, 1)),
}  # fmt: skip


# -- by hand ----------------------------------------------------------------------------------------------------------

BY_HAND = ("transformer", "tied decoder", "tied pair", "tied embedding", "volume", "several", "subclasses", "mixer")


class Einops(nn.Module):
    """einops in a forward pass, and as a layer."""

    def __init__(self) -> None:
        super().__init__()
        from einops.layers.torch import Rearrange

        self.conv, self.patches = (
            nn.Conv2d(3, 16, 3, padding=1),
            Rearrange("b c (h p) (w q) -> b (h w) (p q c)", p=2, q=2),
        )
        self.hidden, self.head = nn.Linear(64, 32), nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        from einops import rearrange, reduce

        x = rearrange(torch.relu(self.conv(x)), "b c h w -> b h w c")
        x = self.patches(rearrange(x, "b h w c -> b c h w"))
        return self.head(reduce(torch.relu(self.hidden(x)), "b n d -> b d", "mean"))


NETWORKS: dict[str, Network] = {
    **TRANSFORMERS,
    **TIMM,
    **{name: Network(make, example, "other", "by hand") for name, (make, example) in USER_NETWORKS.items()},
    **{name: Network(STRUCTURES[name].make, STRUCTURES[name].example, "other", "by hand") for name in BY_HAND},
    "einops": Network(Einops, _images(8), "other", "by hand"),
}
