"""Texts in which nothing is private, by what makes them look as if there were."""

from __future__ import annotations

LOOK_LIKE_NAMES = (
    "plugged the jack into the port", "the rose fell out of the vase", "it may fail again", "mark the box with the pen",
    "the pepper was left on the board", "a slice of turkey on the plate", "the china plate is chipped",
    "will drop it when the grip is loose", "the bill was folded twice", "the arm can grant no more force",
    "put the basil, the sage and the rosemary in the pan", "the ruby and the amber beads were mixed up",
    "pulled out the art book", "the violet towel and the olive jar", "the robin toy is on the shelf", "sandy surface",
    "the chip bag and the chuck of the drill", "a frank hot dog", "rob the tray of one cup", "the heather and the ivy",
    "the gene model kit", "max force reached", "the dolly was in the way", "a penny and a nickel",
    "the carol sheet", "hope the next one works", "grace period over", "the ray of light hit the lens",
    "the pat of butter", "bob of the pendulum", "a dash of ginger and a hazel nut", "the jade and pearl necklace",
    "bring the lotus cream", "the iris of the camera", "dawn light was too dim", "an iron and a drew up plan",
)  # fmt: skip
"""small letters: words for things that are also names, cities or months"""

SENTENCES = (
    "Unfortunately the gripper slipped.", "Gripping too hard.", "Slipped twice. Recovered once.",
    "Towel not folded. Corner sticks out.", "Dropping the cup was not planned.", "Lid is loose. Bowl tipped over.",
    "Collided with the shelf. Stopped by the limit switch.", "Overall fine. Grasp is a bit off.",
    "Lighting changed. Shadows on the table.", "Drawer jammed half way.", "Sponge stuck to the fingers.",
    "Awkward pose. Elbow hits the rack.", "Plate fell. Nobody was hurt.", "Marker rolled away. Try again.",
    "Water spilled. Cleanup needed.", "Knife turned upside down.", "Excessive force. Handle bent.",
    "Objects were swapped. Blue one first.", "Calibration drifted. Offset of 3 cm.", "Human intervened at the end.",
    "Banana was squashed.", "Timeout. Nothing grasped.", "Hesitated for 4 s. Then went on.", "Wrong drawer opened.",
    "Fridge door hit the arm.", "Almost there. Released too early.", "Pen is upside down. Cap missing.",
    "Vibration at high speed.", "Teleoperation lagged.", "Reset between attempts was sloppy.",
)  # fmt: skip
"""sentences that begin with all kinds of words"""

NUMBERS = (
    "moved to 0.1234, 0.5678 above the table", "joints at 1.5708 -0.7854", "version 1.2.10 of the driver",
    "dropped on the floor 2 times", "12:30 in the video", "at 0:42 it slips", "attempts 2 and 3 may fail",
    "5 ms delay, 120 ms late", "seed 50000, step 4000", "3/4 of the way", "0.12 m off", "use the 10.5 cm cup",
    "2 cars on the road toy", "the lab 2 cm further", "1/2/3 blocks stacked", "grade 3/5", "ratio 16:9 at 30 fps",
    "topic /camera/color/image_raw was empty", "and/or the left/right cup", "success rate 50%, n=20",
    "camera 2 and cam3 disagree", "h264 at 15 fps", "block 12 of 40", "speed 0.25, force 12.5 N",
    "rotate by 90 degrees",
    "the 3rd may have slipped", "march 3 steps forward", "laptop 2 on the desk", "the pc was slow", "ep_000123 is fine",
)  # fmt: skip
"""numbers, versions and codes that are no dates, places or telephones"""

CODES = (
    "TCP error on the UR5", "the ROS node died", "RGB and IR are off", "USB cable loose", "PID gains too low",
    "the EE is at the limit", "OK so far", "SAM lost the mask", "CAD part on the bed", "LED strip too bright",
    "the VLA was slow", "IK failed", "GPU out of memory", "DOF 6 locked", "F/T sensor noise", "YCB mug 025",
)  # fmt: skip
"""abbreviations in capitals"""
BRAND_FRAMES = ("the {} can fell over", "put the {} next to the cup", "the {} slipped", "{} was not seen at all")
