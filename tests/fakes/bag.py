"""Real bags, written with rosbags: a ball that moves, seen by cameras, and a robot's signals."""

import io
from fractions import Fraction

import av
import numpy as np
from PIL import Image
from rosbags import rosbag1, rosbag2
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from demerit.data.video import open_encoder

SECOND = 10**9
START = 1_700_000_000 * SECOND
VIDEO = "builtin_interfaces/Time timestamp\nstring frame_id\nuint8[] data\nstring format"
STORAGES = ("mcap", "sqlite3", "bag")


def pictures(count=12, size=(32, 48), shade=0):
    """Images of a bright square that moves to the right; `shade` tells cameras apart."""
    frames = np.full((count, *size, 3), shade, dtype=np.uint8)
    for place in range(count):
        frames[place, 8:24, 2 * place : 2 * place + 16] = (250, 120, 10)
    return frames


def encode_h264(frames, codec="libx264", gop=5, **options):
    """Encode images as one packet each, without B-frames."""
    context = av.CodecContext.create(codec, "w")
    context.height, context.width = frames.shape[1:3]
    context.pix_fmt, context.gop_size, context.max_b_frames = "yuv420p", gop, 0
    context.time_base, context.framerate = Fraction(1, 10), Fraction(10)
    context.options = {"tune": "zerolatency", "crf": "18", **options} if codec == "libx264" else options
    open_encoder(context)
    packets = []
    for place, image in enumerate(frames):
        frame = av.VideoFrame.from_ndarray(image, format="rgb24")
        frame.pts = place
        packets += context.encode(frame)
    return [bytes(packet) for packet in [*packets, *context.encode(None)]]


def jpeg(image, kind="JPEG"):
    file = io.BytesIO()
    Image.fromarray(image).save(file, kind, **({"quality": 95} if kind == "JPEG" else {}))
    return file.getvalue()


class BagWriter:
    """Writes a bag of one of STORAGES; messages are given as plain values."""

    def __init__(self, path, storage="mcap", packed="", **notes):
        self.is1 = storage == "bag"
        self.store = get_typestore(Stores.ROS1_NOETIC if self.is1 else Stores.ROS2_HUMBLE)
        self.store.register(get_types_from_msg(VIDEO, "foxglove_msgs/msg/CompressedVideo"))
        if self.is1:
            self.writer = rosbag1.Writer(path)
        else:
            plugin = rosbag2.StoragePlugin.MCAP if storage == "mcap" else rosbag2.StoragePlugin.SQLITE3
            self.writer = rosbag2.Writer(path, version=9, storage_plugin=plugin)
            if packed:
                self.writer.set_compression(rosbag2.CompressionMode[packed], rosbag2.CompressionFormat.ZSTD)
            for name, text in notes.items():
                self.writer.set_custom_data(name, text)
        self.connections = {}

    def __enter__(self):
        self.writer.open()
        return self

    def __exit__(self, *_):
        self.writer.close()

    def type(self, name):
        return self.store.types[name]

    def stamp(self, at):
        return self.type("builtin_interfaces/msg/Time")(at // SECOND, at % SECOND)

    def header(self, at):
        sequence = (0,) if self.is1 else ()
        return self.type("std_msgs/msg/Header")(*sequence, self.stamp(at), "base")

    def write(self, topic, kind, at, *values, received=None):
        """Write a message at `at` nanoseconds after the start; `received` is when it arrived."""
        at, received = START + at, START + (at if received is None else received)
        values = [value(at) if callable(value) else value for value in values]
        if topic not in self.connections:
            self.connections[topic] = self.writer.add_connection(topic, kind, typestore=self.store)
        message = self.type(kind)(*values)
        encode = self.store.serialize_ros1 if self.is1 else self.store.serialize_cdr
        self.writer.write(self.connections[topic], received, bytes(encode(message, kind)))

    def raw(self, topic, at, image, encoding="rgb8", **when):
        if encoding in ("bgr8", "bgra8"):
            image = image[..., ::-1]
        if encoding in ("rgba8", "bgra8"):
            image = np.concatenate([image, np.full((*image.shape[:2], 1), 255, np.uint8)], axis=2)
        image = image[..., 0] if encoding == "mono8" else image
        data = np.ascontiguousarray(image).reshape(-1)
        height, width = image.shape[:2]
        fields = (height, width, encoding, 0, len(data) // height, data)
        self.write(topic, "sensor_msgs/msg/Image", at, self.header, *fields, **when)

    def picture(self, topic, at, image, kind="JPEG", **when):
        data = np.frombuffer(jpeg(image, kind), np.uint8)
        self.write(topic, "sensor_msgs/msg/CompressedImage", at, self.header, kind.lower(), data, **when)

    def packet(self, topic, at, packet, codec="h264", **when):
        data = np.frombuffer(packet, np.uint8)
        self.write(topic, "foxglove_msgs/msg/CompressedVideo", at, self.stamp, "base", data, codec, **when)

    def joints(self, topic, at, names, positions, **when):
        values = (np.array(positions, float), np.zeros(len(names)), np.zeros(0))
        self.write(topic, "sensor_msgs/msg/JointState", at, self.header, names, *values, **when)

    def text(self, topic, at, text):
        self.write(topic, "std_msgs/msg/String", at, text)

    def flag(self, topic, at, value):
        self.write(topic, "std_msgs/msg/Bool", at, value)


def put_bag(path, storage="mcap", count=12, step=SECOND // 10, cameras=("video", "jpeg", "raw"), task="", **notes):
    """Write a bag of three cameras (H.264, JPEG, raw), 10 images a second, and joints at 50 Hz; return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    frames = pictures(count)
    packets = encode_h264(frames)
    with BagWriter(path, storage, **notes) as bag:
        if task:
            bag.text("/task", 0, task)
        for place, image in enumerate(frames):
            at = place * step
            if "video" in cameras:
                bag.packet("/front/video", at, packets[place])
            if "jpeg" in cameras:
                bag.picture("/side/image_raw/compressed", at + 1000, image)
            if "raw" in cameras:
                bag.raw("/wrist/image_raw", at + 2000, image)
            for part in range(5):
                now = at + part * step // 5
                bag.joints("/joint_states", now, ["shoulder", "elbow"], [now / SECOND, -1.0])
    return path
