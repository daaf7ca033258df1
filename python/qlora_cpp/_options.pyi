"""The options of train(), as scripts/option_types.py writes them."""

from typing import Any, Literal, Mapping, Sequence, TypedDict, Union

class TrainOptions(TypedDict, total=False):
    preset: Literal["none", "qlora-paper"]
    model_name_or_path: str
    base_model: str
    overwrite_output_dir: bool
    overwrite: bool
    load_in_4bit: bool
    bnb_4bit_quant_type: Literal["nf4", "fp4"]
    quant_type: Literal["nf4", "fp4"]
    bnb_4bit_use_double_quant: bool
    use_double_quant: bool
    double_quantization: bool
    use_bnb_nested_quant: bool
    bnb_4bit_blocksize: int
    blocksize: int
    block_size: int
    scale_search: bool
    compute_dtype: Literal["auto", "float32", "bfloat16", "int8"]
    bnb_4bit_compute_dtype: Literal["auto", "float32", "bfloat16", "int8"]
    int8_backward: bool
    device: Literal["auto", "cpu"]
    datasets: Union[Sequence[Any], str]
    data: Union[Sequence[Any], str]
    eval_dataset: Union[Sequence[Any], str]
    test_datasets: Union[Sequence[Any], str]
    eval_data: Union[Sequence[Any], str]
    val_set_size: Union[float, str]
    val_size: Union[float, str]
    calibration_dataset: Union[Sequence[Any], str]
    calibration_size: Union[float, str]
    dataset_format: str
    type: str
    max_length: int
    max_seq_length: int
    sequence_len: int
    cutoff_len: int
    over_long: Literal["drop", "truncate", "error"]
    bad_records: Literal["error", "drop"]
    train_on_inputs: bool
    assistant_only_loss: bool
    train_turns: Literal["all", "last", "each"]
    append_eos: bool
    prompt_layout: Literal["auto", "chat", "text", "instruction_answer"]
    prompt_template: str
    completion_template: str
    ignore_fields: Union[Sequence[Any], str]
    remove_columns: Union[Sequence[Any], str]
    packing: bool
    sample_packing: bool
    shuffle: bool
    dataset_prepared_path: str
    chat_template: str
    chat_template_kwargs: str
    chat_template_date: str
    decision_template: str
    question_types: Union[Sequence[Any], str]
    soft_targets: bool
    option_order: Literal["auto", "given", "shuffle"]
    max_options: int
    share_prefix: bool
    text_column: str
    label_column: str
    label_names: Union[Sequence[Any], str]
    instructions: str
    adapter: str
    lora_model_dir: str
    lora_r: int
    r: int
    rank: int
    lora_rank: int
    lora_alpha: Union[float, str]
    alpha: Union[float, str]
    lora_dropout: Union[float, str]
    lora_target_modules: Union[Sequence[Any], str]
    target_modules: Union[Sequence[Any], str]
    lora_target: Union[Sequence[Any], str]
    exclude_modules: Union[Sequence[Any], str]
    modules_to_save: Union[Sequence[Any], str]
    lora_modules_to_save: Union[Sequence[Any], str]
    additional_target: Union[Sequence[Any], str]
    layers_to_transform: Union[Sequence[Any], str]
    rank_pattern: Union[Sequence[Any], str, Mapping[str, Any]]
    alpha_pattern: Union[Sequence[Any], str, Mapping[str, Any]]
    use_dora: bool
    peft_use_dora: bool
    init_lora_weights: Literal["default", "pissa", "olora", "loftq"]
    peft_init_lora_weights: Literal["default", "pissa", "olora", "loftq"]
    neftune_noise_alpha: Union[float, str]
    noisy_embedding_alpha: Union[float, str]
    label_smoothing_factor: Union[float, str]
    label_smoothing: Union[float, str]
    objective: Literal["auto", "sft", "decision"]
    brier_weight: Union[float, str]
    ordinal_weight: Union[float, str]
    use_rslora: bool
    peft_use_rslora: bool
    preference_loss: Union[Sequence[Any], str]
    pref_loss: Union[Sequence[Any], str]
    dpo_loss_type: Union[Sequence[Any], str]
    loss_weights: Union[Sequence[Any], str]
    dpo_loss_weights: Union[Sequence[Any], str]
    beta: Union[float, str]
    pref_beta: Union[float, str]
    rl_beta: Union[float, str]
    orpo_alpha: Union[float, str]
    simpo_gamma: Union[float, str]
    cpo_alpha: Union[float, str]
    rpo_alpha: Union[float, str]
    nll_over: Literal["auto", "text", "tokens", "answers"]
    discopop_tau: Union[float, str]
    ld_alpha: Union[float, str]
    use_weighting: bool
    dpo_use_weighting: bool
    desirable_weight: Union[float, str]
    kto_desirable_weight: Union[float, str]
    kto_chosen_weight: Union[float, str]
    undesirable_weight: Union[float, str]
    kto_undesirable_weight: Union[float, str]
    kto_rejected_weight: Union[float, str]
    reference: str
    anchor: Union[Sequence[Any], str]
    anchor_weight: Union[float, str]
    anchor_tokens: int
    per_device_train_batch_size: int
    micro_batch_size: int
    batch_size: int
    gradient_accumulation_steps: int
    global_batch_size: int
    reduction_groups: int
    pipeline_stages: int
    ddp_backend: Literal["auto", "mpi", "tcp"]
    num_train_epochs: Union[float, str]
    num_epochs: Union[float, str]
    epochs: Union[float, str]
    max_steps: int
    optim: Literal["adamw", "adamw_torch", "adamw_torch_fused", "adamw_8bit", "adamw_bnb_8bit", "paged_adamw", "paged_adamw_32bit", "paged_adamw_8bit", "lion", "lion_8bit", "sgd"]
    optimizer: Literal["adamw", "adamw_torch", "adamw_torch_fused", "adamw_8bit", "adamw_bnb_8bit", "paged_adamw", "paged_adamw_32bit", "paged_adamw_8bit", "lion", "lion_8bit", "sgd"]
    learning_rate: Union[float, str]
    lr: Union[float, str]
    loraplus_lr_ratio: Union[float, str]
    loraplus_ratio: Union[float, str]
    embedding_learning_rate: Union[float, str]
    embedding_lr: Union[float, str]
    loraplus_lr_embedding: Union[float, str]
    lr_scheduler_type: Literal["linear", "cosine", "cosine_with_restarts", "constant", "constant_with_warmup", "inverse_sqrt", "polynomial", "cosine_with_min_lr", "cosine_warmup_with_min_lr", "warmup_stable_decay"]
    lr_scheduler: Literal["linear", "cosine", "cosine_with_restarts", "constant", "constant_with_warmup", "inverse_sqrt", "polynomial", "cosine_with_min_lr", "cosine_warmup_with_min_lr", "warmup_stable_decay"]
    lr_scheduler_cycles: Union[float, str]
    num_cycles: Union[float, str]
    lr_scheduler_waves: Union[float, str]
    lr_scheduler_timescale: int
    timescale: int
    min_lr: Union[float, str]
    lr_end: Union[float, str]
    min_lr_rate: Union[float, str]
    min_lr_ratio: Union[float, str]
    lr_scheduler_power: Union[float, str]
    lr_decay_steps: int
    num_decay_steps: int
    lr_decay_type: Literal["cosine", "linear", "1-sqrt"]
    decay_type: Literal["cosine", "linear", "1-sqrt"]
    lr_stable_steps: int
    num_stable_steps: int
    lr_warmup_type: Literal["linear", "cosine", "1-sqrt"]
    warmup_type: Literal["linear", "cosine", "1-sqrt"]
    lr_warmup_rate: Union[float, str]
    warmup_lr_rate: Union[float, str]
    warmup_ratio: Union[float, str]
    warmup_steps: int
    weight_decay: Union[float, str]
    adam_beta1: Union[float, str]
    adam_beta2: Union[float, str]
    adam_epsilon: Union[float, str]
    sgd_momentum: Union[float, str]
    max_grad_norm: Union[float, str]
    gradient_checkpointing: bool
    recompute: Literal["auto", "none", "attention", "mlp", "layer"]
    seed: int
    eval_steps: int
    evals_per_epoch: int
    eval_ratio: Union[float, str]
    eval_on_start: bool
    metric_for_best_model: Literal["loss", "token_accuracy", "accuracy", "brier", "rewards/accuracies", "rewards/margins"]
    load_best_model_at_end: bool
    early_stopping_patience: int
    early_stopping_threshold: Union[float, str]
    logging_steps: int
    report_to: Union[Sequence[Any], str]
    logging_dir: str
    sample_prompts: Union[Sequence[Any], str]
    sample_raw: bool
    sample_steps: int
    sample_max_new_tokens: int
    save_steps: int
    saves_per_epoch: int
    save_ratio: Union[float, str]
    save_total_limit: int
    max_skipped_steps: int
    resume_from_checkpoint: str
    max_memory: str
    threads: int
    save_quantized: str
    gate: str
    dry_run: bool
    dashboard: int
    ddp_timeout: int
