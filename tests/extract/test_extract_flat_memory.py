"""Memory of an extraction does not grow with its batches: measured in a process of its own."""

import subprocess
import sys
import textwrap

BATCHES, ROWS, WIDTH = 1000, 16, 48
TOKENS_NBYTES = ROWS * 16 * WIDTH * 4
"""Of one batch: had one in ten been kept, memory would grow by more than is allowed."""
ALLOWED_NBYTES = (BATCHES - 100) * TOKENS_NBYTES // 10


def test_memory_is_flat_over_1000_batches(tmp_path):
    script = textwrap.dedent(
        f"""
        import gc, sys
        sys.path[:0] = {sys.path!r}
        import numpy as np
        import psutil
        import torch
        from vision_transformer import VisionTransformer, images
        from pipeline.extract.filling import extract_split
        from pipeline.extract.sources import Batch
        from pipeline.extract.taps import tapped
        from pipeline.store import Store

        torch.set_num_threads(1)

        class Pictures:
            name = "pictures"

            def __len__(self):
                return {BATCHES * ROWS}

            def read(self, start, stop):
                ids = np.arange(start, stop)
                return Batch(images(len(ids), seed=start), ids % 5, ids)

        def graphs():
            return sum(1 for each in gc.get_objects() if type(each) is torch.Tensor
                       and each.grad_fn is not None)

        measured, batches = [], 0

        def progress(done, rows):
            global batches
            batches += 1
            if batches == 100 or done == rows:
                gc.collect()
                measured.append(psutil.Process().memory_info().rss)

        net = VisionTransformer(width={WIDTH})
        model = tapped(
            net, {{"features": "norm", "early": "blocks.0", "logits": "head"}},
            layouts={{"features": "NTD", "early": "NTD"}}, prefix={{"cls": 1, "registers": 4}},
            head="head", pooled=True,
        )
        store = Store.create({str(tmp_path / "store")!r})
        # Blocks of about eight batches, so that 100 batches have written some.
        extract_split(store, "id/train", model, Pictures(), classes=5, batch_rows={ROWS},
                      progress=progress, block_nbytes={8 * ROWS * 12000}, chunk_nbytes=400000)
        assert graphs() == 0
        assert len(store.split("id/train").blocks) > 50
        assert batches >= {BATCHES}
        print(*measured)
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    first, last = map(int, done.stdout.split())
    assert last - first < ALLOWED_NBYTES, f"{first / 1e6:.1f} MB, then {last / 1e6:.1f} MB"
