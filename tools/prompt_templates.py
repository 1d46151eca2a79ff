"""Prompts that this project makes itself: general requests and arithmetic word problems, from templates of its own.

They widen the packaged training prompts, which are nearly all about code. The choices come from a hash, so that the list is the same on
every machine and with every Python.
"""

import hashlib
import itertools

TOPICS = """the water cycle; photosynthesis; how vaccines work; the causes of inflation; black holes; the French Revolution; sleep and memory;
electric cars; urban gardening; coral reefs; the history of chess; how a refrigerator works; plate tectonics; public libraries; meditation;
the Roman Empire; renewable energy; how bread rises; learning a second language; volcanoes; the stock market; recycling plastic; jazz music;
bee keeping; the human heart; remote work; space travel; the printing press; healthy breakfasts; tides; machine translation; bicycle repair;
the Silk Road; allergies; time management; whales; how rainbows form; small talk; the Great Wall of China; budgeting for students;
solar eclipses; teamwork; antibiotics; glaciers; public speaking; the invention of the telephone; migratory birds; composting; caffeine;
neural networks; the Olympic Games; earthquakes; house plants; friendship; board games; the periodic table; train travel; rainforests;
cooking pasta; first aid; privacy on the internet; the Renaissance; hiking in winter; DNA""".replace("\n", " ").split("; ")

REQUESTS = [
    "Explain {} to a ten-year-old child.",
    "Write a short paragraph about {}.",
    "What are the three most important things to know about {}?",
    "Give me five interesting facts about {}.",
    "Write a poem of eight lines about {}.",
    "Make a list of questions that a beginner may ask about {}, with short answers.",
    "Summarise in two sentences why {} matters.",
    "I have to give a five-minute talk on {}. Suggest an outline.",
    "Write a short dialogue in which a teacher and a pupil talk about {}.",
    "What is a common misunderstanding about {}, and what is true?",
    "Write the beginning of a short story in which {} plays a part.",
    "Compare {} with something from everyday life.",
    "You are an expert. Answer briefly: what should I read first about {}?",
    "Write an e-mail to a friend in which you recommend learning about {}.",
    "Describe {} without using technical words.",
    "What are the advantages and disadvantages of {}?",
    "Write a quiz of four questions about {} and give the solutions.",
    "Imagine that you are a journalist. Write a headline and a first paragraph about {}.",
    "How has our view of {} changed in the last hundred years?",
    "Give step-by-step advice for someone who wants to know more about {}.",
]

ROLES = """a travel guide; a doctor; a history teacher; a chef; a lawyer; a gardener; a sports coach; a librarian; a software engineer; a
grandmother; a detective; a mathematics tutor; a sailor; a museum guide; a job interviewer; a science-fiction writer""".replace("\n", " ").split("; ")

TASKS = [
    "Pretend to be {}. Introduce yourself and offer your help in three sentences.",
    "Act as {} and tell me what a typical working day looks like.",
    "Write a polite message to {} in which you ask for an appointment next week.",
    "What would {} say to someone who is afraid of making mistakes?",
    "Answer as {}: what is the best advice that you ever got?",
    "Write a review of a book that was written by {}.",
]

NAMES = "Anna Ben Carla David Elif Farid Grace Hugo Ines Jonas Kenji Lena Mara Noah Olga Priya Quinn Rosa Samir Tariq Uma Victor Wanda Yusuf".split()
THINGS = "apples pencils stamps marbles books stickers eggs tickets candles bottles shells postcards oranges coins buttons flowers".split()
PROBLEMS = [
    "{n} has {a} {t} and buys {b} more. Then {n} gives {c} of them to {m}. How many {t} are left?",
    "A box holds {b} {t}. {n} fills {c} boxes and has {d} {t} over. How many {t} does {n} have in all?",
    "One of the {t} costs {c} dollars. {n} pays for {b} of them with a {e} dollar note. How much change is due?",
    "{n} reads {b} pages on each weekday and {a} pages on each day of the weekend. How many pages is that in {d} weeks?",
    "A train runs at {e} kilometres an hour for {c} hours and at {f} kilometres an hour for {d} hours. How far does it go?",
    "{n} earns {b} dollars an hour. {m} earns {c} dollars an hour more. How much do the two earn together in {d} hours?",
    "There are {e} {t} in a shop. On Monday {b} are sold, on Tuesday twice as many. How many remain?",
    "{n} shares {e} {t} equally among {d} friends and keeps what cannot be shared. How many does each friend get, and how many are kept?",
    "{n} is {c} years older than {m}. In {d} years {m} will be {b}. How old is {n} now?",
    "A tank holds {e} litres. Each minute {b} litres flow in and {c} litres flow out. How much is gained in {d} minutes?",
    "{n} saves {b} dollars each week and spends {c} dollars of it on {t}. After how many weeks has {n} saved {e} dollars?",
    "A garden is {b} metres long and {a} metres wide. A fence costs {c} dollars a metre. What does the fence cost?",
    "{n} has three times as many {t} as {m}. Together they have {q}. How many {t} does each of them have?",
    "A jacket costs {e} dollars and is reduced by {p} percent. What is the new price?",
    "In a class of {f} pupils, {p} percent walk to school. How many do not walk?",
    "{n} walks {b} minutes to the bus, waits {c} minutes, and rides for {a} minutes. How many hours and minutes is that, there and back?",
]


def _pick(sequence, *key):
    digest = hashlib.sha256("/".join(map(str, key)).encode()).digest()
    return sequence[int.from_bytes(digest[:8], "big") % len(sequence)]


def general():
    """[(id, text)]: every request with every topic, every task with every role."""
    texts = [r.format(t) for r, t in itertools.product(REQUESTS, TOPICS)] + [r.format(t) for r, t in itertools.product(TASKS, ROLES)]
    return [(f"general/{i}", text) for i, text in enumerate(texts)]


def arithmetic(count=960):
    """[(id, text)]: word problems in turns of the templates, with names and numbers by a hash."""
    out = []
    for i in range(count):
        name = _pick(NAMES, i, "n")
        values = {
            "n": name,
            "m": _pick([x for x in NAMES if x != name], i, "m"),
            "t": _pick(THINGS, i, "t"),
            "a": _pick(range(12, 40), i, "a"),
            "b": _pick(range(13, 30), i, "b"),
            "c": _pick(range(2, 12), i, "c"),
            "d": _pick(range(2, 7), i, "d"),
            "e": _pick(range(80, 401, 20), i, "e"),
            "f": _pick(range(40, 81, 20), i, "f"),
            "p": _pick((5, 10, 20, 25, 40, 50), i, "p"),
            "q": _pick(range(16, 81, 4), i, "q"),
        }
        out.append((f"arithmetic/{i}", PROBLEMS[i % len(PROBLEMS)].format(**values)))
    return out
