"""A grammar that writes little stories: the training data of the embedded example model.

    >>> from story_grammar import story
    >>> print(story(7))

Pure standard library and deterministic: ``story(seed)`` is the same text on every machine and on
every Python version (only ``random.Random(seed).random()`` is used, which Python promises to keep).

Templates are plain sentences in which ``[a|b|]`` chooses one of the alternatives (they nest) and
``{slot}`` is looked up in the story's slots: ``{h}`` the hero's name, ``{h.he}`` ``{h.him}``
``{h.his}`` ``{h.self}`` the pronouns, ``{h.kind}`` "fox", ``{h.a}`` "a small fox", ``{h.the}``
"the small fox"; the same for the friend ``{f...}`` and the stranger ``{s...}``. Sentences are
capitalised afterwards, words after ``~`` excepted. A plot is a function that says templates,
paragraph by paragraph. All stories are of our own making and suit all ages.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

TRAINING_SEEDS = range(0, 1_000_000)
HELD_OUT_SEEDS = range(10_000_000, 10_000_040)
CHAT_SEEDS = 2_000_000_000

# --------------------------------------------------------------------------------------- words

GIRLS = (
    "Mia Luna Nora Poppy Hazel Willow Tilly Ruby Ivy Daisy Lily Rosie Clara Pearl Wren Olive Dot "
    "Greta Maple Bella Juno Freya Nell Opal Penny Fern Cora Elsie Suki Anya Zara Tess Iris Molly "
    "Bea Lotte Mina Yuki Amara Leila Sana Flora Kit Marta Inga Dora Vera Stella Robin Edda"
).split()
BOYS = (
    "Pip Finn Leo Oscar Milo Toby Hugo Otto Max Ben Jasper Rufus Barnaby Theo Felix Sam Tom Archie "
    "Bruno Gus Ned Ollie Percy Rowan Arlo Basil Casper Digby Emil Fergus Henry Ivo Jonas Kai Linus "
    "Moss Nico Omar Pablo Ravi Silas Tariq Ugo Victor Wally Alfie Ziggy Edgar Tucker Bramble"
).split()
SYLLABLES_A = "Ba Be Bo Da Di Do Fa Fi Ga Ka Ki Lo Lu Ma Me Mo Na No Pa Ri Ro Sa So Ta To Va Zi Zo"
SYLLABLES_B = "bi da den do ka la li lo ma mi mo na ni nu ra ri ro sa ta to va vi"
ENDINGS_HER = "la na ra lia nia mi sa ri elle ina"
ENDINGS_HIM = "bo do ko mo rin ton ro bert nik lo"

ANIMALS = (
    "fox rabbit mouse hedgehog bear squirrel otter badger duck frog turtle kitten puppy lamb mole "
    "beaver goat piglet pony raccoon panda koala monkey penguin"
).split()
PEOPLE_HER = "girl princess baker's_daughter fairy".split()
PEOPLE_HIM = "boy prince shepherd_boy wizard".split()
WONDERS = "dragon robot giant".split()

LOOKS = "little small young tiny gentle cheerful curious clever brave kind quiet merry".split()

DIGGERS = "mole badger rabbit".split()
CLIMBERS = "squirrel monkey cat owl crow".split()
SWIMMERS = "otter duck frog beaver".split()
STRONG = "bear ox horse giant".split()
GNAWERS = "mouse beaver squirrel".split()
ELDERS = (
    "old owl|old tortoise|wise old badger|grey old goose|old toad|wise old raven|old shepherd|"
    "old gardener"
).split("|")

HOBBIES = (
    "painting pictures|singing songs|collecting shiny stones|climbing trees|baking bread|"
    "counting the stars|reading stories|building little boats|picking flowers|playing the drum|"
    "dancing in the rain|watching the clouds|telling jokes|flying kites|jumping over puddles|"
    "looking for snails|planting seeds|whistling tunes|making soup|riding down hills"
).split("|")

TREASURES = (
    "red kite|silver bell|blue scarf|little drum|wooden boat|golden key|paper lantern|music box|"
    "green marble|yellow umbrella|striped hat|pocket watch|tin whistle|glass bead|woolly blanket|"
    "toy train|purple ribbon|round mirror|lucky coin|picture book|brass button|warm mitten|"
    "shiny spoon|small violin"
).split("|")

FOODS = (
    "honey cake|apple pie|blackberry tart|warm loaf of bread|bowl of carrot soup|plum cake|"
    "basket of berries|bag of nuts|pot of honey|plate of pancakes|cheese sandwich|ginger biscuit|"
    "pumpkin pie|jar of jam|pear|sweet bun"
).split("|")

SEEDS = "sunflower pumpkin rose tulip melon poppy daisy lily".split()

FEARS = (
    ("the dark", "the lamp went out", "walk through the dark"),
    ("thunder", "a storm rolled over the hills", "run out into the thunder"),
    ("deep water", "the rain made the river rise", "cross the deep water"),
    ("high places", "the wind blew hard", "climb up high"),
    ("loud noises", "a great crash shook the ground", "run towards the noise"),
    ("strangers", "a stranger knocked on the door", "ask a stranger for help"),
)

NOISES = (
    ("tap, tap, tap", "a woodpecker making a new door"),
    ("whoo, whoo, whoo", "the wind blowing in an empty bottle"),
    ("splish, splash, splosh", "a family of ducks taking a midnight bath"),
    ("rumble, rumble, rumble", "a very hungry tummy"),
    ("scratch, scratch, scratch", "a hen looking for a lost egg"),
    ("clink, clank, clunk", "an old bucket swinging in the wind"),
    ("hum, hum, hum", "a bee who could not sleep"),
    ("snore, snuffle, snore", "a bear fast asleep under the leaves"),
    ("squeak, squeak, squeak", "a rusty little gate"),
    ("plip, plop, plip", "the roof dripping into a teapot"),
)

CONTESTS = (
    ("a great race around the pond", "race", "reach the finish line"),
    ("a boat race on the lake", "race", "reach the far shore"),
    ("a contest to build the tallest tower", "contest", "finish the tower"),
    ("a race to the top of the hill", "race", "touch the flag at the top"),
    ("a contest to find the biggest mushroom", "contest", "bring a mushroom home"),
    ("a snail race in the garden", "race", "lead the snail to the gate"),
)

WONDERS_TO_SEE = (
    ("the sea", "It was big and blue and it never stopped moving"),
    ("the snow", "It was soft and white and it covered the whole world"),
    ("the great waterfall", "It sang like a thousand bells and shone with every colour"),
    ("the northern lights", "They danced across the sky like green ribbons"),
    ("the whale", "It was as big as a house and it sang a slow, deep song"),
    ("the city of lanterns", "A thousand little lights floated over the roofs"),
    ("the edge of the map", "There was no edge at all, only more hills to explore"),
    ("the oldest tree in the world", "It was so wide that ten friends could not reach around it"),
)

COLOURS = "red blue green yellow orange purple silver golden white".split()


@dataclass(frozen=True)
class Place:
    """Where a story happens, and what can be found there."""

    where: str
    name: str
    inside: str
    spots: tuple[str, ...]
    water: str
    tall: str


PLACES = (
    Place(
        "at the edge of a green forest",
        "the forest",
        "in the forest",
        (
            "under the old oak",
            "behind the mossy stones",
            "in the hollow log",
            "among the ferns",
            "beside the blackberry bush",
        ),
        "the stream",
        "the pine tree",
    ),
    Place(
        "in a small village by the sea",
        "the village",
        "in the village",
        (
            "under the fishing nets",
            "behind the lighthouse",
            "on the sandy beach",
            "inside the old boat",
            "between the grey rocks",
        ),
        "the sea",
        "the lighthouse",
    ),
    Place(
        "on a farm at the end of a long road",
        "the farm",
        "on the farm",
        (
            "in the hay barn",
            "behind the chicken house",
            "under the red cart",
            "in the tall wheat",
            "next to the well",
        ),
        "the duck pond",
        "the windmill",
    ),
    Place(
        "high up in the snowy mountains",
        "the mountains",
        "in the mountains",
        (
            "in the cold cave",
            "behind the frozen waterfall",
            "under a heap of snow",
            "on the wooden bridge",
            "among the grey rocks",
        ),
        "the icy lake",
        "the steep cliff",
    ),
    Place(
        "in a busy little town",
        "the town",
        "in the town",
        (
            "in the market square",
            "under the park bench",
            "behind the bakery",
            "on the library steps",
            "next to the fountain",
        ),
        "the river",
        "the clock tower",
    ),
    Place(
        "in a sunny garden behind a white house",
        "the garden",
        "in the garden",
        (
            "under the rose bush",
            "behind the watering can",
            "in the flower pot",
            "among the cabbages",
            "beneath the garden bench",
        ),
        "the lily pond",
        "the apple tree",
    ),
    Place(
        "on a tiny island in a wide blue lake",
        "the island",
        "on the island",
        (
            "under the palm leaves",
            "in the crab's cave",
            "on the pebble beach",
            "behind the driftwood",
            "inside a big shell",
        ),
        "the lake",
        "the coconut tree",
    ),
    Place(
        "in an old castle on a hill",
        "the castle",
        "in the castle",
        (
            "under the round table",
            "behind the velvet curtain",
            "in the empty kitchen",
            "on the winding stairs",
            "inside the suit of armour",
        ),
        "the moat",
        "the highest tower",
    ),
    Place(
        "in a quiet valley full of flowers",
        "the valley",
        "in the valley",
        (
            "in the tall grass",
            "behind the stone wall",
            "under the little bridge",
            "among the poppies",
            "beside the beehives",
        ),
        "the brook",
        "the willow tree",
    ),
    Place(
        "beside a slow green river",
        "the river bank",
        "on the river bank",
        (
            "among the reeds",
            "under the wooden dock",
            "in the muddy bank",
            "behind the old mill",
            "on the flat stones",
        ),
        "the river",
        "the poplar tree",
    ),
)

# ------------------------------------------------------------------------------------- machine

_CHOICE = re.compile(r"\[([^\[\]]*)\]")
_SLOT = re.compile(r"\{([a-z_.0-9]+)\}")
_ARTICLE = re.compile(r"\ba (?=[aeiou])")
_SENTENCE = re.compile(r'(^|[.!?] "?|\."? "?|(?:^|[ ])"|\n\n"?)([a-z])')


def article(noun: str) -> str:
    """The noun with "a" or "an" before it."""
    return ("an " if noun[0] in "aeiou" else "a ") + noun


@dataclass(frozen=True)
class Character:
    """Somebody in a story: a name, a kind, and the pronouns that go with both."""

    name: str
    kind: str
    look: str
    she: bool

    def slots(self, key: str) -> dict[str, str]:
        """The template slots of this character under the letter ``key``."""
        described = f"{self.look} {self.kind}".strip()
        return {
            key: self.name,
            f"{key}.kind": self.kind,
            f"{key}.look": self.look,
            f"{key}.a": article(described),
            f"{key}.the": f"the {described}",
            f"{key}.he": "she" if self.she else "he",
            f"{key}.him": "her" if self.she else "him",
            f"{key}.his": "her" if self.she else "his",
            f"{key}.self": "herself" if self.she else "himself",
        }


class Teller:
    """Writes one story: chooses with its own random numbers and fills in templates."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._paragraphs: list[list[str]] = [[]]
        self._letters: set[str] = set()
        self._kinds: set[str] = set()
        self.slots: dict[str, str] = {}
        self.place = self.pick(PLACES)
        self.slots.update(
            where=self.place.where,
            place=self.place.name,
            inside=self.place.inside,
            water=self.place.water,
            tall=self.place.tall,
        )

    def chance(self, p: float) -> bool:
        """True with probability ``p``."""
        return self._random.random() < p

    def die(self, n: int) -> int:
        """A number below ``n``, all with equal chances."""
        return int(self._random.random() * n)

    def pick(self, options: Sequence[T]) -> T:
        """One of the options, the earlier ones more often than the later ones.

        Equal chances would teach a model to be undecided: its best guess at every turn of the
        story would be a matter of rounding. So the weights fall slowly, like those of real words.
        """
        return options[int(self._random.random() ** 1.4 * len(options))]

    def several(self, options: Sequence[T], n: int) -> list[T]:
        """``n`` different options."""
        rest = list(options)
        return [rest.pop(rest.index(self.pick(rest))) for _ in range(n)]

    # characters

    def _name(self, she: bool) -> str:
        while True:
            if self.chance(0.2):
                name = self.pick(SYLLABLES_A.split())
                if self.chance(0.3):
                    name += self.pick(SYLLABLES_B.split())
                name += self.pick((ENDINGS_HER if she else ENDINGS_HIM).split())
            else:
                name = self.pick(GIRLS if she else BOYS)
            if name[0] not in self._letters:
                self._letters.add(name[0])
                return name

    def cast(self, key: str, kinds: Sequence[str] | None = None, look: str | None = None) -> None:
        """Brings in a character under the letter ``key``: {h} hero, {f} friend, {s} stranger."""
        she = self.chance(0.5)
        while True:
            if kinds is not None:
                kind = self.pick(kinds)
            elif self.chance(0.25):
                kind = self.pick(PEOPLE_HER if she else PEOPLE_HIM)
            elif self.chance(0.1):
                kind = self.pick(WONDERS)
            else:
                kind = self.pick(ANIMALS)
            kind = kind.replace("_", " ")
            if kind not in self._kinds or (kinds and set(kinds) <= self._kinds):
                break
        self._kinds.add(kind)
        looks = [x for x in LOOKS if x != self.slots.get("h.look")]
        chosen = self.pick(looks) if look is None else look
        if kind in STRONG and chosen in ("little", "small", "tiny", "young"):
            chosen = "gentle"
        self.slots.update(Character(self._name(she), kind, chosen, she).slots(key))

    # text

    def fill(self, template: str) -> str:
        """The template with its choices made and its slots filled, capitalised."""
        text = template
        while True:
            if (match := _CHOICE.search(text)) is not None:
                text = text[: match.start()] + self.pick(match[1].split("|")) + text[match.end() :]
            elif (match := _SLOT.search(text)) is not None:
                text = text[: match.start()] + self.slots[match[1]] + text[match.end() :]
            else:
                break
        text = re.sub(r" +", " ", text).strip()
        text = _ARTICLE.sub("an ", text)
        return _SENTENCE.sub(lambda m: m[1] + m[2].upper(), text).replace("~", "")

    def say(self, *templates: str) -> None:
        """Adds one of the templates to the paragraph."""
        self._paragraphs[-1].append(self.fill(self.pick(templates)))

    def maybe(self, p: float, *templates: str) -> None:
        """Adds one of the templates with probability ``p``."""
        if self.chance(p):
            self.say(*templates)

    def paragraph(self) -> None:
        """Begins a new paragraph."""
        self._paragraphs.append([])

    def text(self) -> str:
        """The story so far."""
        return "\n\n".join(" ".join(p) for p in self._paragraphs if p)


# -------------------------------------------------------------------------------- common beats


def opening(t: Teller, trait: str = "") -> None:
    """The hero and the place; ``trait`` is a sentence that the plot needs."""
    t.slots["hobby"] = t.pick(HOBBIES)
    t.slots["when"] = t.fill(
        "one [sunny|windy||bright|quiet|cold|warm|misty|rainy|golden] [morning|afternoon|day]"
    )
    style = t.die(10)
    if style < 4:
        t.say(
            "once upon a time, {where}, there lived {h.a} [named|called] {h}.",
            "once upon a time, there [was|lived] {h.a} [named|called] {h}. {h} lived {where}.",
            "once upon a time, {h.a} named {h} lived {where}.",
        )
    elif style < 5:
        t.say(
            "long ago, {where}, there lived {h.a} named {h}.",
            "long, long ago, {h.a} named {h} lived {where}.",
        )
    elif style < 6:
        t.say(
            "there once was {h.a} [named|called] {h} who lived {where}.",
            "this is the story of {h}, {h.a} who lived {where}.",
        )
    elif style < 7:
        t.say(
            "{h} was {h.a} who lived {where}.",
            "{h} {h.the} lived {where}.",
            "have you heard of {h}? {h.he} was {h.a} who lived {where}.",
        )
    elif style < 8:
        t.say("{where} lived {h.a} [named|called] {h}.")
    else:
        t.say(
            "{when}, {h.a} named {h} [woke up early|looked out of the window|set off for a walk"
            "|sat in front of {h.his} house]. {h} lived {where}.",
            "{when}, {h.a} called {h} was on {h.his} way home. {h.he} lived {where}.",
        )
        t.slots["when"] = t.fill("[that day|a little later|before long|that very same day]")
    if trait:
        t.say(trait)
        t.maybe(
            0.4,
            "{h.he} also loved {hobby}.",
            "when {h.he} was not busy, {h.he} loved {hobby}.",
        )
    else:
        t.maybe(
            0.85,
            "{h.he} loved {hobby} [more than anything|most of all|very much].",
            "there was nothing that {h.he} liked better than {hobby}.",
            "every day, {h.he} spent hours {hobby}.",
            "{h.he} was very good at {hobby}.",
            "everybody {inside} liked {h}, because {h.he} [was always kind|had a warm smile"
            "|always said good morning].",
        )


def closing(t: Teller, *morals: str) -> None:
    """The end: a moral, and sometimes a last picture."""
    t.say(*morals)
    t.maybe(
        0.45,
        "that night, {h} slept [very well|deeply|soundly], and {h.he} dreamed of {hobby}.",
        "and when the moon came up, {h} [smiled|yawned] and went to bed.",
        "and if you ever visit {place}, you may meet {h} there.",
        "and they all lived happily ever after.",
        "the stars came out one by one, and all was well {inside}.",
        "the end.",
    )


def thanks(t: Teller, who: str, to: str) -> None:
    """``who`` says thank you to ``to``."""
    t.slots["who"], t.slots["his"], t.slots["to"] = t.slots[who], t.slots[f"{who}.his"], t.slots[to]
    t.say(
        '"thank you, {to}!" said {who}. "[you are a true friend|I will never forget this|you are '
        'so kind|how can I ever repay you]."',
        '"oh, thank you!" cried {who}, and [hugged {to} tightly|jumped for joy|gave {to} a big hug'
        "|danced around {to}].",
        "{who} was so happy that there were tears of joy in {his} eyes. "
        '"thank you, {to}," said {who}.',
    )


# --------------------------------------------------------------------------------------- plots


def lost_treasure(t: Teller) -> None:
    """The hero loses something dear and a friend helps to look for it."""
    t.cast("h")
    t.cast("f")
    t.slots["thing"] = t.pick(TREASURES)
    t.slots["spot1"], t.slots["spot2"], t.slots["spot3"] = t.several(t.place.spots, 3)
    opening(t)
    t.say(
        "{h.his} [favourite|most precious] thing in the world was a {thing}[|, a gift from {h.his} "
        "grandmother].",
        "{h} had a {thing} that [{h.his} grandfather had made|{h.he} took everywhere].",
    )
    t.paragraph()
    t.say(
        "{when}, {h} looked for the {thing}, but it was gone.",
        "{when}, {h} noticed that the {thing} was [missing|gone].",
        '{when}, {h} [cried|called out], "oh no! My {thing} is gone!"',
    )
    t.say(
        "{h.he} looked {spot1}, but it was not there.",
        "{h.he} searched {spot1}. There was nothing but [dust|leaves|an old shoe].",
    )
    t.maybe(0.7, "{h} [sat down and began to cry|felt very sad|did not know what to do].")
    t.say(
        "just then, {f.a} named {f} came by.",
        "along came {h.his} friend {f}, {f.a}.",
        "{f.a} named {f} heard {h.him} and came to see what was wrong.",
    )
    t.say(
        '"[what is the matter|why are you so sad|what is wrong], {h}?" asked {f}. '
        '"I [have lost|cannot find] my {thing}," said {h}.',
        '"I have lost my {thing}," said {h}. "[don\'t worry|don\'t be sad|cheer up]," said {f}. '
        '"[I will help you look for it|we will find it together|two can search better than one]."',
    )
    t.paragraph()
    t.say(
        "together they looked {spot2}. [no {thing}.|it was not there.|they found only a sleepy "
        "snail.]",
        "first they searched {spot2}, but they [found nothing|had no luck].",
    )
    t.say(
        "then {f} looked {spot3}, and [something shone in the light|there it was]. "
        '"[here it is|I found it|look, {h}]!" {f.he} [cried|shouted].',
        'at last they looked {spot3}. "[there it is|I see it]!" shouted {f}. It was the {thing}.',
    )
    thanks(t, "h", "f")
    t.maybe(
        0.5,
        "{h} let {f} [play with|hold|carry] the {thing} all the way home.",
        "from then on, {h} kept the {thing} [in a safe place|close to {h.his} heart].",
    )
    t.paragraph()
    closing(
        t,
        "{h} was glad to have the {thing} back, but {h.he} was even more glad to have a friend.",
        "{h} learned that a good friend is the best treasure of all.",
        'and {h} thought, "a {thing} can be lost, but a true friend will always help you find it."',
    )


def found_treasure(t: Teller) -> None:
    """The hero finds something that belongs to somebody else."""
    t.cast("h")
    t.cast("s")
    t.slots["thing"] = t.pick(TREASURES)
    t.slots["food"] = t.pick(FOODS)
    t.slots["spot1"], t.slots["spot2"] = t.several(t.place.spots, 2)
    opening(t)
    t.paragraph()
    t.say(
        "{when}, {h} found a {thing} {spot1}.",
        "{when}, {h} saw something {spot1}. It was a {thing}!",
        "{when}, while {h} was walking home, {h.he} found a {thing} {spot1}.",
    )
    t.say(
        '"[how beautiful|how lucky I am|what a lovely thing]," {h.he} said. "I will [keep it|take '
        'it home]."',
        '{h.he} picked it up. "[nobody will miss it|now it is mine]," {h.he} thought.',
    )
    t.say(
        "but {spot2}, {h.he} met {s.a} named {s}, who was [crying|very sad|looking at the ground].",
        "but soon {h.he} saw {s.a} named {s}, who was searching everywhere.",
    )
    t.say(
        '"[what is wrong|can I help you|what are you looking for]?" asked {h}. "I have lost my '
        '{thing}," said {s}. "[my mother gave it to me|I have looked everywhere'
        '|it is all I have]."',
    )
    t.paragraph()
    t.say(
        "{h} [held the {thing} behind {h.his} back|felt the {thing} in {h.his} bag]. {h.he} wanted "
        "to keep it so much. But then {h.he} looked at {s}'s sad face.",
        "{h}'s heart beat fast. It would be easy to say nothing. But {h.he} knew [what was right"
        "|that it would not be fair].",
    )
    t.say(
        '"here," said {h}. "I found it {spot1}. It belongs to you."',
        'so {h} held out the {thing}. "[is this yours|is this it]?" {h.he} asked.',
    )
    thanks(t, "s", "h")
    t.maybe(
        0.7,
        "then {s} [shared a {food} with {h}|invited {h} to tea], and they talked until the sun "
        "went down.",
        "after that, {s} let {h} [borrow|play with] the {thing} whenever {h.he} wanted.",
    )
    t.paragraph()
    closing(
        t,
        "{h} had given away a {thing}, but {h.he} had found a friend.",
        "{h} learned that being honest makes the heart feel light.",
        "{h} walked home with empty hands and a happy heart.",
    )


def stuck_friend(t: Teller) -> None:
    """A friend is stuck; the right helper has the right skill."""
    t.cast("h")
    t.cast("f")
    trouble = t.pick(("hole", "tree", "water", "rock", "net"))
    kinds, t.slots["stuck"], t.slots["deed"], t.slots["skill"] = {
        "hole": (
            DIGGERS,
            "at the bottom of a deep hole",
            "dug a tunnel all the way down to {f}",
            "dig",
        ),
        "tree": (
            CLIMBERS,
            "at the very top of {tall}",
            "went up and showed {f} the safe way down",
            "climb",
        ),
        "water": (
            SWIMMERS,
            "on a rock in the middle of {water}",
            "swam across and brought {f} back to the shore",
            "swim",
        ),
        "rock": (
            STRONG,
            "behind a huge rock",
            "pushed the rock away with one great push",
            "push",
        ),
        "net": (
            GNAWERS,
            "in an old net",
            "bit through the net, one string after another",
            "bite",
        ),
    }[trouble]
    t.cast("s", kinds)
    opening(t)
    t.say(
        "{h.his} best friend was {f}, {f.a}.",
        "{h} had a good friend, {f.a} named {f}.",
    )
    t.paragraph()
    t.say(
        '{when}, {h} heard a voice. "help! Help!" it cried. It was {f}, who was stuck {stuck}.',
        "{when}, {h} could not find {f} anywhere. At last {h.he} saw {f.him}: {f} was stuck "
        "{stuck}!",
    )
    t.say(
        '"[don\'t worry|stay calm|hold on], {f}!" called {h}. "[I will get you out|I will save you'
        '|I will think of something]."',
    )
    t.say(
        "{h} tried [and tried|with all {h.his} might], but {h.he} [could not do it|was not able to "
        "help] alone.",
        "{h} tried to use a [rope|stick|ladder], but it was too short.",
    )
    t.say(
        'then {h} remembered {s}, {s.a}. "{s} can {skill} [better than anyone|very well]," '
        "{h.he} thought, and {h.he} ran to ask for help.",
        'so {h} ran to {s}, {s.a} who could {skill} better than anyone. "please help us!" {h.he} '
        "[begged|said].",
    )
    t.paragraph()
    t.say(
        '"[of course|I am coming|let us hurry]," said {s}. {s} {deed}.',
        '{s} came at once. "[let me try|leave it to me|this is what I do best]," {s.he} said, and '
        "{s.he} {deed}.",
    )
    t.say("{f} was free!", "{f} was safe at last.", "at last, {f} was free [again|and safe].")
    thanks(t, "f", t.pick(("h", "s")))
    t.maybe(
        0.6,
        "the three friends went home and [ate [pancakes|warm soup|honey cake|apple pie] by the fire"
        "|sang songs until the evening|laughed about it all].",
    )
    t.paragraph()
    closing(
        t,
        "{h} learned that it is brave to ask for help.",
        "{h} was proud, because asking for help had been the right idea.",
        "since that day, {h}, {f} and {s} have always looked after each other.",
        "nobody can do everything, but together friends can do almost anything.",
    )


def afraid(t: Teller) -> None:
    """The hero is afraid of something and finds courage when it is needed."""
    t.cast("h")
    t.cast("f")
    fear, event, t.slots["dare"] = t.pick(FEARS)
    t.slots["fear"], t.slots["event"] = fear, event
    t.slots["elder"] = t.pick(ELDERS)
    opening(t, "there was only one problem: {h} was afraid of {fear}.")
    t.maybe(
        0.6,
        "whenever {h.he} thought of {fear}, {h.his} knees began to shake.",
        "the others sometimes laughed about it, and that made {h} sad.",
    )
    t.paragraph()
    t.say(
        '{when}, {h} went to the {elder}. "how can I be brave?" {h.he} asked.',
        '{when}, {h} asked the {elder} for advice. "I want to be brave," {h.he} said. "but how?"',
    )
    t.say(
        'the {elder} [smiled|thought for a while|nodded slowly]. "being brave does not mean that '
        'you are never afraid," the {elder} said. "it means that you [try anyway|do what is right'
        '|take one small step, and then another]."',
        'the {elder} said, "[everybody is afraid sometimes|even I am afraid sometimes]. When you '
        "are scared, [take a deep breath and count to three|sing a little song|think of someone "
        'you love]."',
    )
    t.maybe(0.5, "{h} [thanked the {elder} and went home|thought about this for a long time].")
    t.paragraph()
    t.say(
        "that evening, {event}. {h} heard {h.his} friend {f}, {f.a}, calling for help.",
        "the next day, {event}. {f}, {f.a} from next door, was all alone and needed help.",
    )
    t.say(
        "somebody had to {dare}. {h} was scared, but {h.he} remembered the words of the {elder}.",
        '"I have to {dare}," thought {h}. {h.his} heart was beating like a drum, but {h.he} '
        "remembered what the {elder} had said.",
    )
    t.say(
        "{h.he} took a deep breath and went, [step by step|one step at a time], until {h.he} "
        "reached {f}.",
        '"one, two, three," {h.he} [counted|whispered], and {h.he} went. Soon {h.he} was standing '
        "next to {f}.",
    )
    t.say(
        '"you came!" said {f}. "[weren\'t you afraid|were you not scared]?" "[yes, I was|a little]'
        ',"  said {h}, "~but [you needed me|I came anyway]."',
        '"{h}, you are so brave!" said {f}, and {h.he} [smiled|blushed|laughed].',
    )
    t.paragraph()
    closing(
        t,
        "{h} was still a little afraid of {fear}, but now {h.he} knew that {h.he} could be brave.",
        "after that, {fear} did not seem so bad at all.",
        "nobody laughed at {h} any more, and {h.he} stood a little taller.",
    )


def sharing(t: Teller) -> None:
    """A hungry stranger asks for food; later the kindness comes back."""
    t.cast("h")
    t.cast("s", look=t.pick(("hungry", "tired", "lonely")))
    t.slots["food"] = t.pick(FOODS)
    t.slots["spot1"] = t.pick(t.place.spots)
    opening(t)
    t.paragraph()
    t.say(
        "{when}, {h} [packed|carried] a {food} and [went for a walk|set off for a picnic].",
        "{when}, {h} had a {food} for lunch. It smelled wonderful.",
    )
    t.say(
        "{spot1}, {h.he} met {s.a} named {s}.",
        "{h.he} sat down {spot1}. There {h.he} saw {s.a} named {s}.",
    )
    t.say(
        '"[please|excuse me]," said {s}, "~[may I have a bite|could you share your food'
        '|do you have anything to eat]? I have not eaten [since yesterday|all day|for two days]."',
    )
    if t.chance(0.6):
        t.say(
            "{h} looked at the {food}. There was not very much. But {h.he} broke it into two parts "
            "and gave {s} the bigger one.",
            '"of course," said {h}. "[there is enough for two|food tastes better with a friend]." '
            "and they shared the {food}.",
        )
    else:
        t.say('"no," said {h}. "it is all mine!" And {h.he} turned away.')
        t.say(
            "but the {food} did not taste good any more. {h} looked back and saw how sad {s} was.",
            "but {h.he} could not enjoy it. {h.his} heart felt as heavy as a stone.",
        )
        t.say(
            '"I am sorry," said {h}. "please, take half of my {food}." {s} smiled, and they ate '
            "together."
        )
    t.paragraph()
    t.say(
        "[a few days|a week|some weeks] later, {h} got lost in [a storm|the fog|the snow]. It was "
        "cold, and {h.he} did not know the way home.",
        "[a few days|a week] later, {h} fell and hurt {h.his} leg, far away from home.",
    )
    t.say(
        'suddenly {h.he} heard a voice. It was {s}! "[you were kind to me|you shared with me when '
        "I was hungry],"
        '" said {s}. "now [I will help you|it is my turn to help]."',
        'then somebody came with a [lamp|lantern]. It was {s}. "come with me," {s.he} said. "I '
        'know the way."',
    )
    t.say("{s} brought {h} safely home[|, and they drank hot tea together].")
    t.paragraph()
    closing(
        t,
        "{h} learned that kindness always finds its way back.",
        "what you share with others is never lost.",
        "from that day on, {h} always carried a little more food than {h.he} needed.",
    )


def making(t: Teller) -> None:
    """The hero makes something, fails, and tries again."""
    t.cast("h")
    t.cast("f")
    t.slots["work"], t.slots["verb"], t.slots["fail1"], t.slots["fail2"], t.slots["trick"] = t.pick(
        (
            (
                "a kite",
                "make",
                "it was too heavy to fly",
                "the wind tore the paper",
                "use thin sticks and a long tail",
            ),
            (
                "a cake",
                "bake",
                "it was as hard as a stone",
                "{h.he} used salt instead of sugar",
                "read the recipe slowly",
            ),
            (
                "a boat",
                "build",
                "it sank to the bottom of {water}",
                "water came in through a hole",
                "fill the holes with wax",
            ),
            (
                "a tree house",
                "build",
                "the floor fell down",
                "the roof flew away",
                "tie every knot twice",
            ),
            (
                "a song",
                "write",
                "the words did not rhyme",
                "{h.he} forgot the tune",
                "sing it slowly, line by line",
            ),
            (
                "a scarf",
                "knit",
                "it was full of holes",
                "it was much too short",
                "count every stitch",
            ),
            (
                "a snow castle",
                "build",
                "the walls fell over",
                "the tower melted in the sun",
                "build it in the shade",
            ),
            (
                "a little wagon",
                "build",
                "the wheels came off",
                "it rolled only in circles",
                "make all the wheels the same size",
            ),
        )
    )
    t.slots["result"] = t.slots["work"].replace("a ", "the ", 1)
    t.slots["day"] = t.pick(
        ("the summer fair", "the big market", "the winter feast", "the spring party")
    )
    opening(t)
    t.paragraph()
    t.say(
        "{when}, {h} decided to {verb} {work} for {day}.",
        '{when}, {h} had an idea. "I will {verb} {work} for {day}!" {h.he} said.',
    )
    t.say(
        "{h.he} worked [very hard|all day long|until it was dark], but {fail1}.",
    )
    t.say("so {h.he} tried [again|once more]. But this time {fail2}.")
    t.say(
        '"I will never [do it|get it right]!" cried {h}, and {h.he} [threw {h.self} on the grass'
        "|wanted to give up|sat down in a corner].",
    )
    t.say(
        '{f}, {f.a}, sat down next to {h.him}. "I once failed ten times," {f.he} said. "[do not '
        'give up|try one more time]. You only have to {trick}."',
        'then {h.his} friend {f}, {f.a}, came by. "[may I give you a tip|shall I tell you a secret'
        ']?" asked {f}. "you have to {trick}."',
    )
    t.paragraph()
    t.say(
        "the next morning, {h} [started again|tried again]. {h.he} was [careful|patient] and "
        "remembered what {f} had said. And this time, it worked!",
        "so {h} tried a third time. {h.he} took {h.his} time and did not hurry. It worked!",
    )
    t.say(
        "at {day}, everybody [admired {result}|clapped and cheered]. "
        '"[how wonderful|well done, {h}|that is amazing]!" they said.',
    )
    t.maybe(0.6, '"I could not have done it without {f}," said {h}.')
    t.paragraph()
    closing(
        t,
        "{h} learned that every mistake is a step on the way.",
        "and {h} knew now: you have only failed when you stop trying.",
        "{h} was proud, and {h.he} already had an idea for something new.",
    )


def contest(t: Teller) -> None:
    """A boaster and a patient hero compete."""
    t.cast("h", look=t.pick(("small", "slow", "quiet", "patient", "little")))
    t.cast("f", look=t.pick(("proud", "fast", "loud")))
    t.slots["event"], t.slots["sort"], t.slots["goal"] = t.pick(CONTESTS)
    opening(t)
    t.say("{h} had a neighbour, {f.a} named {f}, who [loved to boast|always wanted to be first].")
    t.paragraph()
    t.say(
        "{when}, there was {event}.",
        "{when}, everybody came together for {event}.",
    )
    t.say(
        '"[I will win, of course|nobody can beat me|I am the best in the whole world]!" said {f}. '
        '"{h} [is much too slow|has no chance]." {h} [only smiled|said nothing].',
    )
    t.say(
        "the {sort} began. {f} was far ahead at once, and {h} [went on, slow and steady"
        "|did {h.his} best, without hurrying].",
    )
    t.say(
        '"I have [so much|plenty of] time," thought {f}, and {f.he} lay down [for a nap|in the sun'
        "|in the soft grass]. Soon {f.he} was fast asleep.",
        "but {f} stopped again and again to [show off|wave to the crowd|look at {f.self} in a "
        "puddle].",
    )
    t.paragraph()
    if t.chance(0.55):
        t.say(
            "meanwhile, {h} was the first to {goal}. Everybody cheered! When {f} saw it, it was "
            "too late.",
            "so it was {h} who was the first to {goal}. {f} could not believe it.",
        )
        t.say(
            '"[how did you do that|how did you win]?" asked {f}. "I just kept going," said {h}.',
        )
        t.say(
            '{f} looked at the ground. "I am sorry that I laughed at you," {f.he} said. "[you '
            'deserve the prize|well done]."',
            '"next time, we can [practise together|be a team]," said {h}, and {f} nodded.',
        )
    else:
        t.say(
            "suddenly {h} heard a cry. {f} had fallen into {water}! {h} did not think about the "
            "{sort} any more. {h.he} ran back and pulled {f.him} out.",
        )
        t.say(
            '"you stopped for me?" asked {f}. "now you cannot win." "[a friend is more important '
            'than a prize|that does not matter]," said {h}.',
        )
        t.say(
            "then they went on, side by side, and they were the last to {goal}. Still, everybody "
            "cheered for them."
        )
    t.paragraph()
    closing(
        t,
        "after that, {f} did not boast any more, and the two became [good|best] friends.",
        "slow and steady, with a kind heart: that is how {h} did everything.",
        "{f} learned that it is better to be a good friend than to be the best.",
    )


def strange_noise(t: Teller) -> None:
    """A noise in the night turns out to be something funny."""
    t.cast("h")
    t.cast("f")
    t.slots["noise"], t.slots["truth"] = t.pick(NOISES)
    t.slots["spot1"] = t.pick(t.place.spots)
    t.slots["guess1"], t.slots["guess2"] = t.several(
        (
            "a ghost",
            "a monster",
            "a hungry wolf",
            "a dragon with a cold",
            "a pirate",
            "a giant in wooden shoes",
            "a witch",
        ),
        2,
    )
    opening(t)
    t.paragraph()
    t.say(
        'one night, {h} [woke up|could not sleep]. There was a strange noise outside. "{noise}," '
        "it went.",
        'one dark night, when everything was quiet, {h} heard something. "{noise}," it went.',
    )
    t.say(
        '"[maybe it is {guess1}|is it {guess1}|that must be {guess1}]!" thought {h}, and {h.he} '
        "[hid under the blanket|held {h.his} breath].",
        '{h} pulled the blanket over {h.his} head. "I hope it is not {guess1}," {h.he} whispered.',
    )
    t.say('but the noise did not stop. "{noise}!"', '"{noise}!" There it was again.')
    t.say(
        '{h} ran to {h.his} friend {f}, {f.a}. "wake up!" {h.he} said. "there is {guess1} '
        'outside!"',
        'so {h} knocked on the door of {f}, {f.a}. "do you hear that?" asked {h}.',
    )
    t.say(
        '{f} listened. "[I think it is {guess2}|it sounds like {guess2}|it could be {guess2}]," '
        '{f.he} said. "[let us go and see|we should take a look]."',
    )
    t.paragraph()
    t.say(
        "they took a [lamp|lantern|candle] and [tiptoed|crept] through the dark. The noise came "
        "from somewhere {spot1}.",
        "hand in hand they went outside. The noise grew louder and louder. It came from {spot1}.",
    )
    t.say(
        "{h} lifted the light. And what did they see? It was not {guess1}, and it was not {guess2}."
        " It was {truth}!",
        '"[one, two, three|now]!" whispered {f}, and they looked. It was only {truth}!',
    )
    t.say(
        "{h} and {f} [looked at each other and laughed|laughed until their tummies hurt|had to sit "
        "down, they laughed so much].",
    )
    t.paragraph()
    closing(
        t,
        "since that night, {h} has never been afraid of strange noises. "
        "{h.he} simply goes to look.",
        "most scary things are not scary at all when you look at them with a friend.",
        '"next time," said {h}, "I will look first and be scared later."',
    )


def lost_child(t: Teller) -> None:
    """The hero meets somebody small who is lost, and follows clues."""
    t.cast("h")
    t.cast("s", "duckling kitten piglet lamb puppy chick fawn".split(), look="lost")
    t.slots["spot1"], t.slots["spot2"], t.slots["spot3"] = t.several(t.place.spots, 3)
    opening(t)
    t.paragraph()
    t.say(
        "{when}, {h} heard somebody crying {spot1}. It was {s.a}.",
        "{when}, {h} found {s.a} {spot1}. Big tears ran down {s.his} face.",
    )
    t.say(
        '"[what is your name|who are you]?" {h} asked softly. "I am {s}," said the {s.kind}. "I '
        '[cannot find my mother|lost my family|do not know the way home]."',
    )
    t.say(
        '"[don\'t cry|do not be afraid], {s}," said {h}. "I will [bring you home|help you]. What '
        'can you remember?"',
    )
    t.say(
        '"I remember [a smell of fresh bread|a little bridge|a big red flower|the sound of bells'
        '|a yellow door]," said {s}.',
        '{s} thought hard. "we came from {spot2}," {s.he} said.',
    )
    t.paragraph()
    t.say(
        "so they set off together. They looked {spot2}, but nobody was there.",
        "they walked and walked. {h} [told funny stories|sang a song|held {s}'s hand] so that {s} "
        "would not be sad. They looked {spot2}, but they found no one.",
    )
    t.maybe(
        0.6,
        "when {s} was tired, {h} carried {s.him} on {h.his} back.",
        'on the way they met a [snail|crow|hen]. "have you seen a {s.kind} family?" asked {h}. '
        '"yes," came the answer. "go on, you are very close."',
    )
    t.say(
        'then, {spot3}, somebody called, "{s}! {s}!" It was {s}\'s mother!',
        'at last they came to a place {spot3}. "mother!" shouted {s}, and {s.he} ran as fast as '
        "{s.he} could.",
    )
    t.say(
        '"thank you, {h}," said the mother. "[you have a good heart|you will always be welcome '
        'here]."',
        "the mother [hugged them both|gave {h} a warm hug and a pot of honey].",
    )
    t.paragraph()
    closing(
        t,
        "{h} went home alone, but {h.he} did not feel alone at all.",
        "since then, {s} visits {h} every week, and {s.he} always knows the way.",
        "even a small act of kindness can be the biggest thing in the world for someone.",
    )


def patience(t: Teller) -> None:
    """A seed needs patience."""
    t.cast("h", look=t.pick(("impatient", "young", "lively", "restless")))
    t.cast("f")
    t.slots["plant"] = t.pick(SEEDS)
    t.slots["elder"] = t.pick(ELDERS)
    opening(t, "{h} [did not like to wait|hated waiting]. Everything had to happen right now.")
    t.paragraph()
    t.say(
        '{when}, the {elder} gave {h} a [tiny|small] {plant} seed. "[plant it and be patient|put '
        'it in the ground and wait]," the {elder} said.',
        "{when}, {h} found a tiny {plant} seed. {h.he} [put it in the ground|planted it] and gave "
        "it some water.",
    )
    t.say(
        "the next day, {h} ran out to look. Nothing! [the day after, still nothing.|]",
        '{h} sat down in front of it. "grow!" {h.he} said. But nothing happened.',
    )
    t.say(
        "{h} [sang to the seed|danced around the seed|told the seed a joke], but it did not grow "
        "any faster.",
        '"[maybe it is broken|why does it take so long|it will never grow]!" said {h}.',
    )
    t.say(
        '{h.his} friend {f}, {f.a}, laughed. "[good things need time|a seed has its own clock|even '
        'you were not big in one day], {h}," said {f}.',
    )
    t.paragraph()
    t.say(
        "so {h} waited. {h.he} gave the seed water every [morning|evening]. [the sun came, and the "
        "rain came.|days went by, and then weeks.]",
    )
    t.say(
        "and then, one morning, there was a little green leaf! It grew and grew, until it was "
        "[as tall as {h}|taller than {h}].",
        'one day, something green looked out of the ground. "it is alive!" shouted {h}. Every day '
        "it grew a little more.",
    )
    t.say(
        "in the end it was the most beautiful {plant} of all, and {h} [shared it with "
        "{f}|showed it to everyone].",
    )
    t.paragraph()
    closing(
        t,
        "{h} learned that the best things are worth waiting for.",
        "and the seeds? {h} kept them in a little bag, for next year. {h.he} could wait.",
        '"[waiting|being patient] is not so hard," said {h}, "~when you take care of something."',
    )


def truth(t: Teller) -> None:
    """Something is broken, and the hero tells the truth."""
    t.cast("h")
    t.cast("f")
    t.slots["thing"] = t.pick(
        (
            "vase",
            "teapot",
            "window",
            "clock",
            "flower pot",
            "mirror",
            "lamp",
            "jar of honey",
            "rocking chair",
        )
    )
    t.slots["colour"] = t.pick(COLOURS)
    t.slots["blame"] = t.pick(("the wind", "the cat", "a bird", "a ghost"))
    opening(t)
    t.paragraph()
    t.say(
        "{when}, {h} was playing with a ball in the house of {f}, {f.a}. Crash! The {colour} "
        "{thing} was broken.",
        "{when}, {h} visited {f}, {f.a}. While {f} was in the kitchen, {h} bumped into the "
        "{colour} {thing}. It fell down and broke.",
    )
    t.say(
        "{h}'s face turned red. Nobody had seen it.",
        '"oh no," whispered {h}. {h.he} [quickly hid the pieces|wanted to run away].',
    )
    t.say(
        '"what was that?" asked {f}. "it was {blame}," said {h}.',
        'when {f} saw the {thing}, {f.he} was sad. "who did this?" {f.he} asked. "it was {blame}," '
        "said {h} quickly.",
    )
    t.paragraph()
    t.say(
        "but that night, {h} could not sleep. The lie [sat in {h.his} tummy like a stone|felt "
        "heavier and heavier].",
        "{h} went home, but nothing was fun any more. {h.he} could only think of the {thing}.",
    )
    t.say(
        'early in the morning, {h} ran back to {f}. "it was not {blame}," {h.he} said. "it was '
        'me. I am so sorry."',
        'at last {h.he} went to {f} and took a deep breath. "I broke your {thing}," {h.he} said. '
        '"I am sorry that I lied."',
    )
    t.say(
        '{f} was quiet for a moment. Then {f.he} smiled. "[thank you for telling me|that was brave'
        '|I am glad that you told me the truth]," said {f}. "[a {thing} can be mended|it was only '
        'a {thing}|we can fix it together]."',
    )
    t.maybe(
        0.7,
        "they [got some glue and mended it together|fixed it as well as they could], and it looked "
        "[almost|nearly] like new.",
    )
    t.paragraph()
    closing(
        t,
        "{h} felt as light as a feather, because the truth had set {h.him} free.",
        "{h} learned that telling the truth is hard for a minute, but a lie is hard all day long.",
        "and {h} never said that it was {blame} again.",
    )


def journey(t: Teller) -> None:
    """A long way to see something wonderful."""
    t.cast("h")
    t.cast("f")
    t.slots["goal"], t.slots["sight"] = t.pick(WONDERS_TO_SEE)
    obstacles = (
        ("a wide river with no bridge", "{f} [built a raft|found a fallen tree to walk on]"),
        ("a dark tunnel", "{h} [sang loudly so that they were not afraid|lit a candle]"),
        ("a steep hill", "they pulled each other up[, step by step|]"),
        (
            "a grumpy goat on a narrow bridge",
            "{h} [told the goat a joke, and it laughed and let "
            "them pass|asked very politely, and the goat let them pass]",
        ),
        ("a thick fog", "{f} [tied a rope around them both|followed the sound of a bell]"),
        ("a field full of thorns", "{f} [found a path around it|walked in front and made a path]"),
    )
    (o1, a1), (o2, a2) = t.several(obstacles, 2)
    opening(t, "{h} had one big dream: {h.he} wanted to see {goal}.")
    t.paragraph()
    t.say(
        '{when}, {h} [packed a small bag|put on {h.his} best hat]. "today I will go," {h.he} said.',
        '{when}, {h} said, "I have waited long enough. Today I will go and see {goal}!"',
    )
    t.say(
        '{h.his} friend {f}, {f.a}, asked, "may I come along?" "of course!" said {h}.',
        '"it is a long way," said {h.his} friend {f}, {f.a}. "I will come with you."',
    )
    t.say("so they set off together[|, with the wind at their backs|, singing a happy song].")
    t.paragraph()
    t.say(f"first they came to {o1}. {a1}.", f"soon they came to {o1}. {a1}.")
    t.say(f"then there was {o2}. {a2}.", f"after that they came to {o2}. {a2}.")
    t.maybe(
        0.6,
        '"[I am so tired|my feet hurt]," said {h}. "[just one more hill|we are nearly there]," '
        "said {f}.",
        "at night they slept under the stars and shared [a blanket|an apple|their last biscuit].",
    )
    t.say(
        "and then, at last, they saw {goal}. {sight}.",
        '"look!" cried {f}. And there was {goal}! {sight}.',
    )
    t.say(
        '"it is even [more beautiful|better] than I dreamed," [whispered|said] {h}.',
        "for a long time, {h} could not say a word.",
    )
    t.paragraph()
    closing(
        t,
        "on the way home, {h} knew: the best part had been the journey with {f}.",
        "{h} and {f} told everybody {inside} about it, and the story grew a little every time.",
        '"where shall we go next?" asked {f}, and {h} laughed.',
    )


def storm(t: Teller) -> None:
    """A storm takes the hero's house; the neighbours build a new one."""
    t.cast("h")
    t.cast("f", STRONG + DIGGERS)
    t.cast("s", GNAWERS + SWIMMERS)
    t.slots["colour"] = t.pick(COLOURS)
    opening(t)
    t.say("{h} lived in a house [made of straw|with a crooked roof|no bigger than a shoe box].")
    t.paragraph()
    t.say(
        "one night, a terrible storm came. The wind howled and the rain fell, and in the morning "
        "the house was gone.",
        "one night, the wind blew so hard that {h}'s house flew away[ like a hat|].",
    )
    t.say(
        '{h} stood in the mud. "[where shall I sleep now|what shall I do now]?" {h.he} [cried'
        "|asked].",
    )
    t.say(
        '"you can stay with me," said {f}, {f.a}, "~[as long as you like|until we build you a new '
        'house]."',
        'then {f}, {f.a}, came along. "I am strong," said {f}. "I will help you build a new '
        'house."',
    )
    t.say(
        '"and I will help too," said {s}, {s.a}.',
        'and {s}, {s.a}, called, "me too! I will bring some wood."',
    )
    t.paragraph()
    t.say(
        "the next day they began. {f} carried the heavy stones, {s} cut the wood, and {h} [cooked "
        "soup for everyone|painted the door {colour}|made the windows].",
    )
    t.say(
        "they worked [for three days|all week], and they [sang while they worked|laughed a lot].",
        "more and more neighbours came, and everybody brought something: [a pot, a chair, a lamp|a "
        "door, a bed, a carpet].",
    )
    t.say(
        "at last the new house was ready. It was [strong and warm|bigger and better than before].",
    )
    thanks(t, "h", t.pick(("f", "s")))
    t.paragraph()
    closing(
        t,
        "{h} had lost a house, but {h.he} had found out how many friends {h.he} had.",
        "and when the next storm came, {h}, {f} and {s} sat together by the warm fire.",
        "a house is made of stones, but a home is made of friends.",
    )


def new_in_town(t: Teller) -> None:
    """Somebody new is different, and the hero makes a friend."""
    t.cast("h")
    t.cast("s", ("dragon", "robot", "giant", "penguin", "bat", "crocodile"), look="shy")
    t.slots["gift"] = {
        "dragon": "lit all the lanterns with one small breath",
        "robot": "fixed the broken carousel in a minute",
        "giant": "lifted the fallen tree off the road with one hand",
        "penguin": "showed everybody how to slide down the hill",
        "bat": "found the way home for everyone in the dark",
        "crocodile": "carried all the children across {water}",
    }[t.slots["s.kind"]]
    opening(t)
    t.paragraph()
    t.say(
        "{when}, a new neighbour came to {place}. It was {s.a} named {s}.",
        "{when}, {s.a} named {s} moved to {place}.",
    )
    t.say(
        '"[look how strange {s.he} is|I have never seen a {s.kind} before]," the others whispered. '
        "Nobody wanted to [play with|talk to] {s}.",
    )
    t.say(
        'but {h} went up to {s.him}. "hello, I am {h}," {h.he} said. "[do you want to play|would '
        'you like a [biscuit|sweet bun|pancake]|shall I show you {place}]?"',
    )
    t.say(
        '{s} [smiled for the first time|was so surprised that {s.he} almost fell over]. "[I would '
        'love to|yes, please]," {s.he} said[| in a very small voice].',
    )
    t.say("they spent the whole day {hobby}, and they had a wonderful time.")
    t.paragraph()
    t.say(
        "a few days later, there was a big party {inside}. Suddenly everybody needed help, and "
        "nobody knew what to do. Then {s} {gift}.",
        "then came the day of the summer feast, and something went wrong. Nobody knew what to do. "
        "But {s} {gift}.",
    )
    t.say(
        '"[hooray for {s}|thank you, {s}]!" they all cried. "[we were wrong about you|we are sorry '
        'that we were not kind]."',
    )
    t.say('"I knew it," said {h}[, and {h.he} was very proud of {h.his} friend|].')
    t.paragraph()
    closing(
        t,
        "since that day, everyone {inside} says hello to new neighbours.",
        "being different is not strange. It is a gift.",
        "{h} learned that a friend can look like anyone at all.",
    )


PLOTS: tuple[Callable[[Teller], None], ...] = (
    lost_treasure,
    found_treasure,
    stuck_friend,
    afraid,
    sharing,
    making,
    contest,
    strange_noise,
    lost_child,
    patience,
    truth,
    journey,
    storm,
    new_in_town,
)


# ------------------------------------------------------------------------------------ interface


def _tell(seed_: int) -> Teller:
    teller = Teller(seed_)
    PLOTS[teller.die(len(PLOTS))](teller)
    return teller


def story(seed: int) -> str:
    """The story with this number."""
    return _tell(seed).text()


REQUESTS = (
    "[please|] tell me a story.",
    "tell me a [short|little|nice|bedtime] story[, please|].",
    "can you tell me a story?",
    "write a [short|little|] story.",
    "I would like to hear a story.",
    "a story, please!",
    "once upon a time",
)
REQUESTS_ABOUT = (
    "tell me a story about {h.a}[| named {h}].",
    "[please|] tell me a story about {h.a}.",
    "write a [short|little|] story about {h.a}[| called {h}].",
    "can you tell me a story about {h.a}[| named {h}]?",
    "a story about {h}, please.",
    "I would like a story about {h} {h.the}.",
    "tell me a story about {h.a} and {f.a}.",
    "tell me a story about {topic}.",
    "do you know a story about {topic}?",
    "tell me a story that takes place {where}.",
    "tell me about {h}.",
)
QUESTIONS = (
    "[hello|hi|hey|good morning|good evening|hello there][!|.|]",
    "who are you?",
    "what is your name?",
    "how are you[| today]?",
    "what can you do?",
    "what is [2|3|5] plus [2|4]?",
    "what is the capital of [France|Spain|Japan|Italy]?",
    "can you help me?",
    "how old are you?",
    "tell me a joke.",
    "what is the weather like?",
    "write a poem.",
    "why is the sky blue?",
    "who is the president?",
    "what is the meaning of life?",
    "explain how a computer works.",
    "write a program in Python.",
    "what do you think about that?",
    "test",
    "are you there?",
    "what is love?",
    "how do I cook rice?",
    "translate this into German.",
    "are you a robot?",
)
GREETINGS = (
    "hello! I am a very small storyteller. [let me tell you a story.|here is a story for you.]",
    "I am a little model, and I only know little stories. [here is one.|let me tell you one.]",
)


def chat(seed: int) -> list[tuple[str, str]]:
    """A conversation of one or two turns: (request, answer) pairs; the answers are stories."""
    chooser = random.Random(f"chat {seed}")
    turns = []
    for turn in range(2 if chooser.random() < 0.25 else 1):
        t = _tell(CHAT_SEEDS + 2 * seed + turn)
        answer = t.text()
        t.slots.setdefault("f.a", t.slots.get("s.a", "a friend"))
        topics = [t.slots[k] for k in ("goal", "fear") if t.slots.get(k, "").startswith("the ")]
        if "thing" in t.slots:
            topics.append(article(t.slots["thing"]))
        topics.append(t.slots["place"])
        t.slots["topic"] = t.pick(topics)
        kind = chooser.random()
        if kind < 0.7:
            request = t.fill(t.pick(REQUESTS_ABOUT))
        elif kind < 0.88 or turn:
            more = "[another one, please!|tell me another story.|one more, please.|more!]"
            request = t.fill(more if turn else t.pick(REQUESTS))
        else:
            request = t.fill(t.pick(QUESTIONS))
            answer = t.fill(t.pick(GREETINGS)) + "\n\n" + answer
        turns.append((request, answer))
    return turns


if __name__ == "__main__":
    import sys

    print(story(int(sys.argv[1]) if len(sys.argv) > 1 else 7))
