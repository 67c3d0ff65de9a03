"""OpenVINO GenAI's continuous batching over an exported model (`optimum-cli export openvino`)."""

import numpy as np
import openvino
import openvino_genai


def load(work):
    config = openvino_genai.SchedulerConfig()
    config.num_kv_blocks = work["kv_bytes"] // (work["kv_bytes_per_token"] * work["block_size"])
    config.dynamic_split_fuse = True
    config.max_num_batched_tokens = work["max_num_batched_tokens"]
    config.max_num_seqs = work["max_num_seqs"]
    precision = {"bfloat16": "bf16", "float32": "f32"}[work["dtype"]]
    properties = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": work["threads"]}
    pipeline = openvino_genai.ContinuousBatchingPipeline(work["model"], config, "CPU", properties)

    def serve(requests):
        configs = []
        for r in requests:
            one = openvino_genai.GenerationConfig()
            one.max_new_tokens, one.ignore_eos, one.do_sample = r["output_tokens"], True, False
            configs.append(one)
        prompts = [openvino.Tensor(np.array([r["prompt"]], dtype=np.int64)) for r in requests]
        return [list(out.m_generation_ids[0]) for out in pipeline.generate(prompts, configs)]

    return serve
