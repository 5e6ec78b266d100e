#!/usr/bin/env python3
"""Checkpoints of whole jobs: resumed in the same and in other layouts, killed, on a full disk; what is refused."""
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
import tenon_job  # noqa: E402
from reader import convert, floats, read_tensors, write_tensors  # noqa: E402
from tenon_job import settings  # noqa: E402

tenon_job.JobTest.TENON, SLOW_DISK = map(os.path.abspath, sys.argv[1:3])
del sys.argv[1:3]

GPT2 = settings(gpt={"family": "gpt2", "kv_heads": 4, "mlp": 96})


def chain(**sizes):
    """chain(tp=2, fsdp=2): strategies in this order, first axis fastest."""
    return settings(strategies={"chain": ", ".join(sizes)}, **{name: {"size": size} for name, size in sizes.items()})


class CheckpointTest(tenon_job.JobTest):
    def train(self, folder, steps, *arguments, metrics="metrics", fresh=True, **options):
        """Trains to `steps` of a schedule that does not depend on them; batch 12 divides by 2 and 3 ranks."""
        words = settings(job={"steps": steps}, checkpoint={"folder": folder}, data={"batch": 12})
        if fresh and os.path.exists(self.path(metrics)):
            os.remove(self.path(metrics))
        return self.run_tenon("run", "job.ini", "--metrics", metrics, *words, *arguments, **options)

    def losses(self, metrics="metrics"):
        return {line["step"]: (line["loss"], line["grad_norm"], line["lr"]) for line in self.metrics(metrics)
                if "grad_norm" in line}

    def tensors(self, folder, name="model.safetensors"):
        return read_tensors(self.path(folder + "/latest/" + name))

    def same_files(self, one, other):
        for name in ("model.safetensors", "optimizer.safetensors", "state.json", "config.json"):
            self.assertEqual(tenon_job.read(self.path(one + "/latest/" + name)),
                             tenon_job.read(self.path(other + "/latest/" + name)), name)

    def near_files(self, one, other, bound):
        for name in ("model.safetensors", "optimizer.safetensors"):
            left, right = self.tensors(one, name), self.tensors(other, name)
            self.assertEqual(list(left), list(right))
            for tensor, value in left.items():
                a, b = floats(value), floats(right[tensor])
                largest = max(max(map(abs, a)), 1e-6)
                worst = max(abs(x - y) for x, y in zip(a, b)) / largest
                self.assertLessEqual(worst, bound, "%s of %s" % (tensor, name))


class Resume(CheckpointTest):
    def check_same_layout(self, *layout):
        self.train("whole", 6, *layout, metrics="whole.jsonl")
        self.train("parts", 3, *layout, metrics="first.jsonl")
        self.train("parts", 6, *layout, metrics="second.jsonl")
        whole, second = self.losses("whole.jsonl"), self.losses("second.jsonl")
        self.assertEqual(sorted(second), [4, 5, 6])
        self.assertEqual(second, {step: whole[step] for step in (4, 5, 6)})
        self.same_files("whole", "parts")

    def test_one_rank_to_the_bit(self):
        self.check_same_layout()

    def test_tp_and_fsdp_to_the_bit(self):
        self.check_same_layout(*chain(tp=2, fsdp=2))

    def test_dp_with_dropout_and_gpt2_to_the_bit(self):
        self.check_same_layout(*chain(dp=2), *GPT2, *settings(gpt={"dropout": 0.1}))

    def test_bf16_sgd_and_micro_batches_to_the_bit(self):
        other = settings(precision={"compute": "bf16"}, optimizer={"kind": "sgd"}, data={"micro_batches": 2})
        self.check_same_layout(*chain(tp=2, fsdp=2), *GPT2, *other)

    def check_other_layouts(self, *model):
        """From layout to layout, two steps each, beside one rank throughout."""
        away = settings(strategies={"chain": "fsdp, offload"}, fsdp={"size": 3},
                        offload={"min_size": 0, "optimizer": "host"})
        layouts = (chain(tp=2), chain(fsdp=2, pp=2), chain(cp=2), chain(fsdp=3), chain(tp=2, cp=2, fsdp=2), away, [])
        self.train("whole", 2 * len(layouts), *model, metrics="whole.jsonl")
        whole = self.losses("whole.jsonl")
        for steps, layout in zip(range(2, 2 * len(layouts) + 1, 2), layouts):
            self.train("parts", steps, *model, *layout)
            for step, (loss, norm, rate) in self.losses().items():
                self.assertAlmostEqual(loss / whole[step][0], 1, delta=2e-5, msg="loss of step %d" % step)
                self.assertAlmostEqual(norm / whole[step][1], 1, delta=2e-5, msg="norm of step %d" % step)
                self.assertEqual(rate, whole[step][2])
        self.near_files("whole", "parts", 1e-3)

    def test_llama_in_other_layouts(self):
        self.check_other_layouts()

    def test_gpt2_in_other_layouts(self):
        self.check_other_layouts(*GPT2)

    def test_pp_with_a_tied_embedding_to_the_bit(self):
        """Both stages hold it; the files have it once."""
        self.check_same_layout(*chain(fsdp=2, pp=2), *GPT2)

    def test_every_layout_writes_the_same_start(self):
        """Parameters that no step has changed are the same files from every layout."""
        still = settings(optimizer={"lr": 0})
        self.train("one", 1, *still, *GPT2)
        for name, layout in (("tp", chain(tp=2)), ("fsdp", chain(fsdp=3)), ("both", chain(tp=2, dp=2)),
                             ("pp", chain(pp=2))):
            self.train(name, 1, *still, *GPT2, *layout)
            self.assertEqual(self.tensors("one"), self.tensors(name), name)

    def test_skipped_steps_stay_counted(self):
        """Adam's bias correction counts applied steps, so that a step that was skipped changes the next one."""
        def state(change=None):
            with open(self.path("run/latest/state.json"), "r+", encoding="utf-8") as file:
                found = json.load(file)
                if change:
                    found.update(change)
                    file.seek(0)
                    file.truncate()
                    json.dump(found, file)
            return {key: found[key] for key in ("step", "applied", "skipped", "skipped_in_row")}
        self.train("run", 2)
        state({"applied": 1, "skipped": 1, "skipped_in_row": 1})
        shutil.copytree(self.path("run"), self.path("other"), symlinks=True)
        self.train("run", 3, *chain(dp=2))
        self.assertEqual(state(), {"step": 3, "applied": 2, "skipped": 1, "skipped_in_row": 0})
        one = self.tensors("run")
        shutil.rmtree(self.path("run"))
        shutil.move(self.path("other"), self.path("run"))
        state({"applied": 2, "skipped": 0, "skipped_in_row": 0})
        self.train("run", 3, *chain(dp=2))
        self.assertNotEqual(one, self.tensors("run"))

    def test_metrics_go_on(self):
        """Behind the step that is resumed; what a run wrote of later steps, and the part of a line, goes."""
        every = settings(checkpoint={"every": 2})
        self.train("whole", 6, *every, metrics="whole.m")
        self.train("run", 4, *every)
        with open(self.path("metrics"), "a", encoding="utf-8") as file:
            file.write('{"step": 5, "loss": 1}\n{"step": 6, "lo')
        self.train("run", 6, *every, fresh=False)
        self.assertEqual(self.losses(), self.losses("whole.m"))
        self.assertEqual([line["step"] for line in self.metrics("metrics") if "loss" in line], [1, 2, 3, 4, 5, 6])
        self.train("run", 6, *settings(checkpoint={"resume": "no"}), fresh=False)
        self.assertEqual(self.losses(), self.losses("whole.m"))

    def test_a_finished_run_is_not_run_again(self):
        self.train("done", 2)
        before = os.stat(self.path("done/latest/model.safetensors")).st_mtime_ns
        self.train("done", 2)
        self.assertEqual(self.losses(), {})
        self.assertEqual(os.stat(self.path("done/latest/model.safetensors")).st_mtime_ns, before)

    def test_resume_no_starts_anew_and_replaces(self):
        self.train("again", 2)
        first = self.tensors("again")
        self.train("again", 2, *settings(job={"seed": 8}, checkpoint={"resume": "no"}))
        self.assertEqual(sorted(self.losses()), [1, 2])
        self.assertNotEqual(first, self.tensors("again"))
        self.assertEqual(sorted(os.listdir(self.path("again"))), ["latest", "step-00000002"])


class Files(CheckpointTest):
    def test_names_shapes_and_state(self):
        self.train("out", 2, *GPT2, *chain(tp=2))
        model, optimizer = self.tensors("out"), self.tensors("out", "optimizer.safetensors")
        self.assertEqual(model["transformer.h.1.attn.c_attn.weight"][:2], ("F32", [64, 192]))
        self.assertEqual(model["transformer.h.0.attn.c_attn.bias"][1], [192])
        self.assertEqual(set(optimizer), {name + ".adamw." + which for name in model for which in "mv"})
        qkv = floats(model["transformer.h.1.attn.c_attn.weight"])
        self.assertEqual([sum(value == 0 for row in range(64) for value in qkv[row * 192 + part * 64:][:64])
                          for part in range(3)], [0, 0, 0])
        for name in optimizer:
            self.assertEqual(optimizer[name][1], model[name[:-len(".adamw.m")]][1])
        with open(self.path("out/latest/state.json"), encoding="utf-8") as file:
            state = json.load(file)
        self.assertEqual((state["step"], state["applied"], state["skipped"], state["seed"]), (2, 2, 0, 7))
        with open(self.path("out/latest/config.json"), encoding="utf-8") as file:
            config = json.load(file)
        self.assertEqual([config[key] for key in ("model_type", "num_hidden_layers", "hidden_size", "vocab_size")],
                         ["gpt2", 2, 64, 256])

    def test_every_and_keep(self):
        self.train("kept", 7, *settings(checkpoint={"every": 2, "keep": 2}))
        self.assertEqual(sorted(os.listdir(self.path("kept"))), ["latest", "step-00000006", "step-00000007"])
        self.assertEqual(os.readlink(self.path("kept/latest")), "step-00000007")

    def test_minutes(self):
        self.train("timed", 3, *settings(checkpoint={"minutes": 1e-9, "keep": 0}), *chain(dp=2))
        self.assertEqual(sorted(os.listdir(self.path("timed"))),
                         ["latest", "step-00000001", "step-00000002", "step-00000003"])

    def test_a_full_disk_ends_the_run_and_spares_the_last_checkpoint(self):
        self.train("full", 2)
        before = self.tensors("full")

        def little():
            resource.setrlimit(resource.RLIMIT_FSIZE, (100000, 100000))
        run = self.train("full", 50, *settings(checkpoint={"every": 1}), code=1, preexec_fn=little,
                         restore_signals=False)
        self.matches(r"checkpoint of step 3: .*model\.safetensors: File too large; no checkpoint of step 3 was made",
                     run.stderr)
        self.assertLess(len(self.losses()), 40)
        self.assertEqual(sorted(os.listdir(self.path("full"))), ["latest", "step-00000002"])
        self.assertEqual(before, self.tensors("full"))
        self.train("full", 3)
        self.assertEqual(sorted(self.losses()), [3])

    def test_a_small_disk_under_two_ranks(self):
        """A real file system without room for the third checkpoint, where one may be mounted."""
        os.mkdir(self.path("disk"))
        words = settings(job={"steps": 20}, checkpoint={"folder": "disk", "every": 1, "keep": 0}) + chain(tp=2)
        inside = ["unshare", "-rm", "sh", "-c",
                  'mount -t tmpfs -o size=3m tmpfs disk || exit 77; "$@"; echo code $?; ls -A disk', "sh"]
        command = inside + [self.TENON, "run", "job.ini"] + words
        run = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=200)
        if "code" not in run.stdout:
            self.skipTest("no mount namespace: " + run.stderr)
        self.matches("state.json: No space left on device|safetensors: No space left on device", run.stderr)
        self.assertEqual(run.stdout.split()[-5:], ["code", "1", "latest", "step-00000001", "step-00000002"])

    def test_a_folder_that_cannot_be_made(self):
        self.write("taken", "a file")
        for layout in ([], chain(dp=2)):
            run = self.train("taken/inside", 1, *layout, code=2)
            self.matches(r"\A\S+ \[checkpoint\] folder: .*taken: is a file, and no folder can be made there\n\Z", run.stderr)


class Killed(CheckpointTest):
    def test_killed_at_any_moment(self):
        """Whatever the moment, `latest` is a complete checkpoint, and the run goes on from it."""
        draw, layout = random.Random(11), chain(dp=2)
        every = settings(checkpoint={"every": 1, "keep": 2})
        self.train("killed", 1, *every, *layout)
        seen = 1
        for _ in range(int(os.environ.get("TENON_KILLS", "50"))):
            words = settings(job={"steps": 100000}, checkpoint={"folder": "killed"}, data={"batch": 12})
            run = self.start("run", "job.ini", *words, *every, *layout)
            before = os.readlink(self.path("killed/latest"))
            self.assertTrue(tenon_job.until(lambda: os.readlink(self.path("killed/latest")) != before), run.stderr)
            time.sleep(draw.uniform(0, 0.1))
            run.close()
            self.tensors("killed")
            self.tensors("killed", "optimizer.safetensors")
            with open(self.path("killed/latest/state.json"), encoding="utf-8") as file:
                step = json.load(file)["step"]
            self.assertGreater(step, seen)
            seen = step
        self.train("killed", seen + 1, *every, *layout)
        self.assertEqual(sorted(self.losses()), [seen + 1])
        self.assertFalse([name for name in os.listdir(self.path("killed")) if name.startswith(".")])

    def test_an_interrupt_saves(self):
        words = settings(job={"steps": 100000}, checkpoint={"folder": "stopped"}, data={"batch": 12})
        run = self.start("run", "job.ini", "--metrics", "metrics", *words, *chain(tp=2))
        self.assertTrue(tenon_job.until(lambda: len(self.losses()) >= 2))
        run.process.send_signal(signal.SIGINT)
        run.wait()
        last = max(self.losses())
        with open(self.path("stopped/latest/state.json"), encoding="utf-8") as file:
            self.assertEqual(json.load(file)["step"], last)


@unittest.skipIf(os.environ.get("SANITIZE", "none") != "none", "a sanitizer must be loaded before all others")
class Slow(CheckpointTest):
    def start_slow(self, steps, every, *layout, hold=""):
        """`hold`: what is held up, as a pattern of "before fsync PATH", "after rename FROM TO"."""
        words = settings(job={"steps": steps}, checkpoint={"folder": "slow", "every": every}, data={"batch": 12})
        slow = {"LD_PRELOAD": SLOW_DISK, "SLOW_HOLD": hold, "SLOW_LOG": self.path("log"), "SLOW_GO": self.path("go")}
        return self.start("run", "job.ini", "--metrics", "metrics", *words, *layout, env=slow)

    def test_steps_go_on_while_it_is_written(self):
        """Saved after step 5; four more steps are done while the disk has not yet taken anything."""
        run = self.start_slow(9, 5, *chain(dp=2), hold="before fsync")
        self.assertTrue(tenon_job.until(lambda: 9 in self.losses()), run.stderr)
        self.assertFalse(os.path.lexists(self.path("slow/latest")))
        self.write("go", "")
        self.assertEqual(run.wait(), 0, run.stderr)
        self.assertEqual(sorted(os.listdir(self.path("slow"))), ["latest", "step-00000005", "step-00000009"])
        stalls = [(line["step"], line["checkpoint_ms"]) for line in self.metrics() if "checkpoint_ms" in line]
        self.assertEqual([step for step, _ in stalls], [5])

    def test_nothing_is_published_before_it_is_on_the_disk(self):
        """Every rank's fsync of every file, then the folder's name, then `latest`."""
        run = self.start_slow(1, 1, *chain(tp=2))
        self.assertEqual(run.wait(), 0, run.stderr)
        folder = self.path("slow/")
        lines = [line.replace(folder, "") for line in tenon_job.read(self.path("log")).decode().splitlines()]
        temporary, final = ".step-00000001.tmp", "step-00000001"
        renames = [line for line in lines if line.startswith("rename ") and "latest" in line or temporary + " " in line]
        self.assertEqual(renames, ["rename %s %s" % (temporary, final), "rename .latest.tmp latest"])
        before = lines[:lines.index(renames[0])]
        for name, ranks in (("model.safetensors", 2), ("optimizer.safetensors", 2), ("config.json", 1),
                            ("state.json", 1)):
            self.assertEqual(before.count("fsync %s/%s" % (temporary, name)), ranks, lines)
        self.assertIn("fsync " + temporary, before)
        self.assertIn("fsync " + folder[:-1], lines[lines.index(renames[0]):lines.index(renames[1])])

    def test_killed_while_it_is_published(self):
        """Before and after each of its steps: `latest` is complete, and the run goes on from it."""
        layout, every = chain(dp=2), settings(checkpoint={"every": 1, "keep": 2})
        self.train("slow", 1, *every, *layout)
        seen = 1
        moments = ("fsync .*/model.safetensors", "fsync .*[.]tmp", "rename .*[.]tmp .*/step-[0-9]+", "fsync .*/slow",
                   "rename .*[.]latest[.]tmp .*latest")
        for hold in ["%s %s$" % (when, moment) for moment in moments for when in ("before", "after")]:
            if os.path.exists(self.path("log")):
                os.remove(self.path("log"))
            run = self.start_slow(100000, 1, *layout, *settings(checkpoint={"keep": 2}), hold=hold)
            self.assertTrue(tenon_job.until(lambda: "held" in self.log()), run.stderr)
            run.close()
            self.tensors("slow")
            self.tensors("slow", "optimizer.safetensors")
            with open(self.path("slow/latest/state.json"), encoding="utf-8") as file:
                step = json.load(file)["step"]
            self.assertEqual(step, seen + (hold == "after %s$" % moments[-1]), hold)
            seen = step
            self.matches("at step %d$" % seen, self.run_tenon("check", "job.ini", *settings(
                job={"steps": 100000}, checkpoint={"folder": "slow"}, data={"batch": 12})).stdout)
        self.train("slow", seen + 1, *every, *layout)
        self.assertEqual(sorted(self.losses()), [seen + 1])
        self.assertFalse([name for name in os.listdir(self.path("slow")) if name.startswith(".")])

    def log(self):
        return tenon_job.read(self.path("log")).decode()


class Refused(CheckpointTest):
    def setUp(self):
        super().setUp()
        self.train("good", 1)

    def refuse(self, pattern, *arguments, folder="good"):
        """By the command before it starts ranks, and by a rank that another launcher started."""
        for code, env in ((2, None), (1, {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
                                          "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(tenon_job.free_port())})):
            run = self.train(folder, 2, *arguments, code=code, env=env)
            self.matches(pattern, run.stderr)

    def damage(self, change, name="model.safetensors"):
        path = self.path("good/latest/" + name)
        data = bytearray(tenon_job.read(path))
        with open(path, "wb") as file:
            file.write(change(data))

    def test_truncated(self):
        self.damage(lambda data: data[:-4])
        self.refuse("bytes of data follow the header, but the tensors have")

    def test_truncated_header(self):
        self.damage(lambda data: data[:100])
        self.refuse("a header of .* bytes cannot be in a file of 100")

    def test_header_length_too_large(self):
        self.damage(lambda data: b"\xff" * 8 + data[8:])
        self.refuse("a header of")

    def test_optimizer_file_damaged(self):
        self.damage(lambda data: data + b"0", "optimizer.safetensors")
        self.refuse("optimizer.safetensors")

    def test_state_damaged(self):
        self.damage(lambda data: data[:20], "state.json")
        self.refuse("state.json")

    def test_state_that_does_not_add_up(self):
        self.damage(lambda data: data.replace(b'"applied": 1', b'"applied": 9'), "state.json")
        self.refuse("do not add up")

    def test_optimizer_file_missing(self):
        os.remove(self.path("good/latest/optimizer.safetensors"))
        self.refuse("optimizer.safetensors: No such file")

    def test_other_data(self):
        self.refuse("seed 7, batch 12 and sequence 32 there are not 8,", *settings(job={"seed": 8}))

    def test_other_optimizer(self):
        self.refuse("its optimizer is adamw, not sgd", *settings(optimizer={"kind": "sgd"}))

    def test_another_model(self):
        self.refuse(r"tensor model\.embed_tokens\.weight has shape \[256, 64\]; this model has \[300, 64\]",
                    *settings(gpt={"vocab": 300}))
        self.refuse(r"tensor model\.layers\.2\.[a-z_.]*weight is missing", *settings(gpt={"layers": 3}))
        self.refuse(r"this model has no tensor model\.layers\.1\.", *settings(gpt={"layers": 1}))

    def test_beyond_the_last_step(self):
        self.train("good", 2)
        run = self.train("good", 1, code=2)
        self.matches(r"is of step 2, but \[job\] steps = 1", run.stderr)


class Check(CheckpointTest):
    """`tenon check` says what a run would start from, and what would be refused, at its line of the manifest."""

    def setUp(self):
        super().setUp()
        self.write("job.ini", tenon_job.MANIFEST.replace("plugin = gpt", "plugin = gpt\nload =") +
                   "[checkpoint]\nfolder = run1\n")

    def check(self, *arguments, code=0, **options):
        return self.run_tenon("check", "job.ini", *settings(job={"steps": 2}, data={"batch": 12}), *arguments, code=code,
                              **options)

    def refused(self, pattern, *arguments):
        self.matches(pattern, self.check(*arguments, code=2).stderr)

    def trained(self, folder="run1"):
        self.train(folder, 2, metrics="m")

    def test_from_seed(self):
        self.assertIn("\nstarts from seed 7\n", self.check().stdout)
        self.assertEqual(json.loads(self.check("--json").stdout)["start"], {"from": "seed"})
        self.assertFalse(os.path.exists(self.path("run1")))

    def test_from_a_checkpoint(self):
        self.trained()
        before = sorted(os.listdir(self.path("run1")))
        self.matches(r"^starts from .*/run1/latest, at step 2$", self.check(*chain(tp=2, dp=2)).stdout)
        start = json.loads(self.check("--json").stdout)["start"]
        self.assertEqual((start["from"], start["step"]), ("checkpoint", 2))
        self.assertIn("starts from seed", self.check(*settings(checkpoint={"resume": "no"})).stdout)
        self.assertEqual(sorted(os.listdir(self.path("run1"))), before)

    def test_from_weights(self):
        self.trained("other")
        words = settings(model={"load": "other"})
        self.matches(r"^starts from the weights of .*/other$", self.check(*words, *chain(fsdp=3)).stdout)
        self.trained()
        self.matches(r"^starts from .*/run1/latest, at step 2$", self.check(*words).stdout)

    def test_all_tensors_that_do_not_fit(self):
        """Not the first one alone; [model] load stands in line 7."""
        self.trained("other")
        tensors = self.tensors("other")
        name, other = "model.layers.1.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.weight"
        dtype, shape, raw = tensors.pop(name)
        tensors[other] = (tensors[other][0], [32, 128], tensors[other][2])
        tensors["odd"] = (dtype, shape, raw)
        write_tensors(self.path("bad.safetensors"), tensors)
        self.write("job.ini", tenon_job.read(self.path("job.ini")).decode().replace("load =", "load = bad.safetensors"))
        for expected in (r"tensor %s is missing" % name, r"tensor %s has shape \[32, 128\]; this model has \[64, 64\]" % other,
                         "this model has no tensor odd"):
            self.refused(r"^job\.ini:7: \[model\] load: .*bad\.safetensors: " + expected)
        self.write("job.ini", tenon_job.read(self.path("job.ini")).decode().replace("bad.safetensors", "nowhere"))
        self.refused(r"^job\.ini:7: \[model\] load: .*nowhere: there is no model\.safetensors")

    def test_another_model_or_schedule(self):
        self.trained()
        line = tenon_job.read(self.path("job.ini")).split(b"\n").index(b"folder = run1") + 1
        self.refused(r"^job\.ini:%d: \[checkpoint\] folder: .*tensor model\.layers\.2\.[a-z_.]*weight is missing" % line,
                     *settings(gpt={"layers": 3}))
        self.refused("optimizer.safetensors: tensor model.layers.2", *settings(gpt={"layers": 3}))
        self.refused(r"folder: .*seed 7, batch 12 and sequence 32 there are not 8,", *settings(job={"seed": 8}))
        self.refused(r"folder: .*is of step 2, but \[job\] steps = 1", *settings(job={"steps": 1}))
        os.remove(self.path("run1/latest/state.json"))
        self.refused(r"folder: .*state\.json")

    def test_latest_points_to_nothing(self):
        """That is no new run: whoever resumes must not start at step 1 without a word."""
        os.makedirs(self.path("run1"))
        os.symlink("step-00000009", self.path("run1/latest"))
        self.refused(r"folder: .*run1/latest/state\.json")
        self.matches(r"run1/latest/state\.json", self.train("run1", 1, code=2).stderr)

    def test_no_folder(self):
        for key, value in (("every", 5), ("minutes", 0.5)):
            self.refused(r"\[checkpoint\] %s: nothing is saved without a folder; set \[checkpoint\] folder too" % key,
                         *settings(checkpoint={"folder": "", key: value}))

    def test_folder_that_cannot_be_made(self):
        self.write("run1", "a file")
        for folder in ("run1", "run1/inside", "run1/a/b"):
            self.refused(r"folder: .*/run1: is a file", *settings(checkpoint={"folder": folder}))

    def test_folder_that_cannot_be_written(self):
        os.makedirs(self.path("locked"))
        os.chmod(self.path("locked"), 0o555)
        words = settings(job={"steps": 2}, data={"batch": 12}, checkpoint={"folder": "locked/run"})
        command = [self.TENON, "check", "job.ini", *words]
        if os.getuid() == 0:  # who may write anywhere
            command = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all", *command]
        if os.getuid() == 0 and subprocess.run(command[:3] + ["true"], capture_output=True, check=False).returncode:
            self.skipTest("this root cannot give up its rights")
        run = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=200, check=False)
        self.assertEqual(run.returncode, 2, run.stderr)
        self.matches(r"folder: .*/locked: Permission denied", run.stderr)


class Load(CheckpointTest):
    """[model] load from files as other tools write them; lr = 0, so that the params can be compared with the source."""

    def start_from(self, path, *arguments, code=0):
        still = settings(model={"load": path}, optimizer={"lr": 0}, checkpoint={"resume": "no"})
        return self.train("loaded", 1, *still, *arguments, code=code)

    def source(self, *arguments):
        self.train("source", 2, *arguments)
        return self.tensors("source")

    def test_a_checkpoint_folder_and_its_steps(self):
        tensors = self.source()
        for path in ("source", "source/step-00000002", "source/latest/model.safetensors"):
            self.start_from(path, *chain(tp=2))
            self.assertEqual(self.tensors("loaded"), tensors, path)

    def test_gpt2_without_prefix_and_with_buffers_in_half_precision(self):
        tensors = self.source(*GPT2)
        for dtype in ("F32", "BF16", "F16"):
            other = {name.replace("transformer.", "", 1): convert(value, dtype) for name, value in tensors.items()}
            expected = {name: convert(value, "F32") for name, value in other.items()}
            other["lm_head.weight"] = other["wte.weight"]
            other["h.0.attn.bias"] = (dtype, [1, 1, 2, 2], b"\0" * (16 if dtype == "F32" else 8))
            write_tensors(self.path("hf.safetensors"), other)
            for layout in (chain(tp=2), chain(fsdp=3)):
                self.start_from("hf.safetensors", *GPT2, *layout)
                for name, value in self.tensors("loaded").items():
                    wanted = expected[name.replace("transformer.", "", 1)]
                    self.assertTrue(value[1] == wanted[1] and floats(value) == floats(wanted), name + " as " + dtype)

    def check_hugging_face(self, names, options):
        """All three dtypes, in one file and in two with an index, into two layouts. `names`: what the files must have."""
        words = settings(gpt=options)
        tensors = self.source(*words)
        self.assertLessEqual(set(names), set(tensors))
        for dtype, layout in (("F32", chain(tp=2)), ("BF16", chain(fsdp=3)), ("F16", [])):
            stored = {name: convert(value, dtype) for name, value in tensors.items()}
            folder = "hf-" + dtype
            os.mkdir(self.path(folder))
            half = list(stored)[::2]
            parts = {"model.safetensors": list(stored)} if dtype == "BF16" else {
                "model-00001-of-00002.safetensors": half,
                "model-00002-of-00002.safetensors": [name for name in stored if name not in half]}
            for file, held in parts.items():
                write_tensors(self.path(folder + "/" + file), {name: stored[name] for name in held})
            if len(parts) > 1:
                index = {"metadata": {"total_size": 1},
                         "weight_map": {name: file for file, held in parts.items() for name in held}}
                self.write(folder + "/model.safetensors.index.json", json.dumps(index))
            self.start_from(folder, *words, *layout)
            for name, value in self.tensors("loaded").items():
                self.assertEqual((value[1], floats(value)), (stored[name][1], floats(stored[name])), name + " as " + dtype)

    def test_qwen2(self):
        self.check_hugging_face(["model.embed_tokens.weight", "model.layers.1.self_attn.q_proj.bias",
                                 "model.layers.0.self_attn.v_proj.bias", "model.norm.weight"],
                                {"qkv_bias": "true", "tied": "true"})

    def test_qwen3(self):
        self.check_hugging_face(["lm_head.weight", "model.layers.1.self_attn.q_norm.weight",
                                 "model.layers.0.self_attn.k_norm.weight", "model.layers.1.mlp.gate_proj.weight"],
                                {"qk_norm": "true", "head_dim": 24})

    def test_llama_in_three_precisions(self):
        self.check_hugging_face(["lm_head.weight", "model.layers.1.post_attention_layernorm.weight"], {})

    def test_sharded_llama(self):
        tensors = self.source()
        os.mkdir(self.path("hf"))
        names = list(tensors)
        parts = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
        for file, held in parts.items():
            write_tensors(self.path("hf/" + file), {name: tensors[name] for name in held})
        index = {"weight_map": {name: file for file, held in parts.items() for name in held}}
        self.write("hf/model.safetensors.index.json", json.dumps(index))
        self.start_from("hf")
        self.assertEqual(self.tensors("loaded"), tensors)
        index["weight_map"]["model.extra"] = "model-1.safetensors"
        self.write("hf/model.safetensors.index.json", json.dumps(index))
        self.matches("tensor model.extra is not in model-1.safetensors", self.start_from("hf", code=2).stderr)
        index["weight_map"]["model.extra"] = "../model-1.safetensors"
        self.write("hf/model.safetensors.index.json", json.dumps(index))
        self.matches("tensor model.extra is in no file of this folder", self.start_from("hf", code=2).stderr)

    def test_refused_with_the_name(self):
        tensors = self.source(*GPT2)

        def attempt(change, pattern):
            other = dict(tensors)
            change(other)
            write_tensors(self.path("bad.safetensors"), other)
            self.matches(pattern, self.start_from("bad.safetensors", *GPT2, code=2).stderr)
        name = "transformer.h.1.mlp.c_fc.weight"
        dtype, shape, raw = tensors[name]
        attempt(lambda t: t.pop(name), "tensor %s is missing" % name)
        attempt(lambda t: t.update(odd=t[name]), "this model has no tensor odd")
        attempt(lambda t: t.update({"\33[2J": t[name]}), r"this model has no tensor \?\[2J")
        attempt(lambda t: t.update({name: (dtype, shape[::-1], raw)}),
                r"tensor %s has shape \[96, 64\]; this model has \[64, 96\]" % name)
        attempt(lambda t: t.update({"lm_head.weight": ("F32", [256, 64], b"\1" * 65536)}),
                "this model has no tensor lm_head.weight")
        self.matches("nowhere: there is no model.safetensors", self.start_from("nowhere", *GPT2, code=2).stderr)

    def test_random_damage_never_crashes(self):
        """Bytes of the header changed or cut off: loaded, or refused with a line; never a signal."""
        self.source()
        data, draw = tenon_job.read(self.path("source/latest/model.safetensors")), random.Random(5)
        for _ in range(20):
            bad = bytearray(data)
            for _ in range(draw.randint(1, 4)):
                bad[draw.randrange(3000)] = draw.randrange(256)
            if draw.random() < 0.3:
                bad = bad[:draw.randrange(len(bad))]
            with open(self.path("fuzz.safetensors"), "wb") as file:
                file.write(bad)
            words = settings(job={"steps": 1}, model={"load": "fuzz.safetensors"})
            run = self.start("run", "job.ini", *words)
            self.assertIn(run.wait(), (0, 2), run.stderr)
            if run.process.returncode:
                self.matches("fuzz.safetensors", run.stderr)
            run.close()


if __name__ == "__main__":
    unittest.main(verbosity=2)
