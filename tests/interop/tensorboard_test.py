"""Reads our TensorBoard event files with Google's protobuf runtime (and with TensorBoard where it is
installed) and compares them with train_log.jsonl and eval_log.jsonl.
    tensorboard_test.py --qlora PROGRAM --model DIR --dataset FILE"""
import argparse
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

try:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
except ImportError:
    print("SKIPPED: python3-protobuf is not installed; TensorBoard files are not read")
    sys.exit(77)


def event_class():
    """The parts of TensorFlow's event.proto and summary.proto that hold scalars."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="event.proto", package="t", syntax="proto3")

    def message(name, *fields):
        m = file.message_type.add(name=name)
        for number, field_name, kind, label, type_name in fields:
            m.field.add(name=field_name, number=number, type=kind, label=label, type_name=type_name)

    one, many = field.LABEL_OPTIONAL, field.LABEL_REPEATED
    message("Value", (1, "tag", field.TYPE_STRING, one, None),
            (2, "simple_value", field.TYPE_FLOAT, one, None))
    message("Summary", (1, "value", field.TYPE_MESSAGE, many, ".t.Value"))
    message("SessionLog", (1, "status", field.TYPE_INT32, one, None))
    message("Event", (1, "wall_time", field.TYPE_DOUBLE, one, None),
            (2, "step", field.TYPE_INT64, one, None),
            (3, "file_version", field.TYPE_STRING, one, None),
            (5, "summary", field.TYPE_MESSAGE, one, ".t.Summary"),
            (7, "session_log", field.TYPE_MESSAGE, one, ".t.SessionLog"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.MessageFactory(pool).GetPrototype(pool.FindMessageTypeByName("t.Event"))


def masked_crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def records(path):
    data = path.read_bytes()
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        head, body = data[at:at + 8], data[at + 12:at + 12 + length]
        assert struct.unpack_from("<I", data, at + 8)[0] == masked_crc32c(head), "length CRC"
        assert struct.unpack_from("<I", data, at + 12 + length)[0] == masked_crc32c(body), "CRC"
        yield body
        at += 16 + length


def read_scalars(folder):
    """{tag: {step: value}}, with what a SessionLog START makes void taken out, as TensorBoard does."""
    event_type = event_class()
    scalars = {}
    for path in sorted(folder.iterdir(), key=lambda p: (p.stat().st_mtime_ns, p.name)):
        events = [event_type.FromString(body) for body in records(path)]
        assert events[0].file_version == "brain.Event:2"
        for event in events:
            assert abs(event.wall_time - path.stat().st_mtime) < 3600
            if event.session_log.status == 1:
                for steps in scalars.values():
                    for step in [s for s in steps if s >= event.step]:
                        del steps[step]
            for value in event.summary.value:
                scalars.setdefault(value.tag, {})[event.step] = value.simple_value
    return scalars


def read_with_tensorboard(folder):
    try:
        from tensorboard.backend.event_processing import event_accumulator
    except ImportError:
        print("no TensorBoard here: read with protobuf only")
        return None
    accumulator = event_accumulator.EventAccumulator(str(folder))
    accumulator.Reload()
    return {tag: {e.step: e.value for e in accumulator.Scalars(tag)}
            for tag in accumulator.Tags()["scalars"]}


def main():
    parser = argparse.ArgumentParser()
    for name in ("--qlora", "--model", "--dataset"):
        parser.add_argument(name, required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        run = pathlib.Path(scratch) / "run"
        command = [args.qlora, "train", "--model", args.model, "--dataset", args.dataset,
                   "--output_dir", str(run), "--max_steps", "9", "--max_length", "64",
                   "--val_set_size", "4", "--eval_steps", "3", "--save_steps", "4",
                   "--report_to", "tensorboard"]
        subprocess.run(command, check=True, capture_output=True)
        subprocess.run(command + ["--resume_from_checkpoint", str(run / "checkpoint-4")], check=True,
                       capture_output=True)
        want = {}
        for name, prefix in (("train_log", "train/"), ("eval_log", "eval/")):
            for line in (run / f"{name}.jsonl").read_text().splitlines():
                entry = json.loads(line)
                for key, value in entry.items():
                    if key != "step":
                        tag = prefix + key.removeprefix("eval_")
                        want.setdefault(tag, {})[entry["step"]] = struct.unpack(
                            "<f", struct.pack("<f", float(value)))[0]
        for got in (read_scalars(run / "runs"), read_with_tensorboard(run / "runs")):
            if got is not None:
                assert got == want, (sorted(got), sorted(want))
        assert len(want["train/loss"]) == 9 and len(want["eval/loss"]) == 3
        print(f"ok: {len(want)} curves of TensorBoard files equal the JSON Lines")


main()
