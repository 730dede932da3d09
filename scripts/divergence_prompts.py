"""The prompts of scripts/divergence.py: 208 of them in 26 groups of eight that share a beginning.

What stands in a request never depends on an answer: so each way of asking gets the same bytes, and any answer can be
compared with any other. A thread is a conversation that grows by a turn (its earlier answers are written here);
siblings ask different things behind one beginning.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from typing import Any

PARTS = 4

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request: chat messages, and what else its body has. `group` names what it shares its beginning with."""

    name: str
    kind: str
    group: str
    messages: tuple[Message, ...]
    extra: Mapping[str, Any] = field(default_factory=dict)


def prompts(part: int, seed: int = 1) -> list[Prompt]:
    """The prompts of one of the PARTS in the order in which they are sent: groups are mixed, each keeps its order.

    Every part has most kinds.
    """
    groups = [list(group) for number, group in enumerate(_groups()) if number % PARTS == part]
    rng = random.Random(f"{seed} {part}")
    turns = [number for number, group in enumerate(groups) for _ in group]
    rng.shuffle(turns)
    return [groups[number].pop(0) for number in turns]


def _groups() -> Iterator[Iterator[Prompt]]:
    for name, (system, turns) in CHATS.items():
        yield _thread("chat", name, system, turns)
    for name, (source, questions) in CODE.items():
        yield _siblings("code", name, f"You are a careful programmer. Here is a file.\n\n```\n{source}```", questions)
    for name, (system, questions) in OBJECTS.items():
        yield _siblings("json", name, system, questions, {"response_format": {"type": "json_object"}})
    for name, (tools, questions) in TOOLS.items():
        extra = {"tools": [_tool(*tool) for tool in tools], "tool_choice": "required"}
        yield _siblings("tools", name, "You are an assistant. Call a tool for each request.", questions, extra)
    for name, (text, questions) in DOCUMENTS.items():
        yield _siblings("document", name, f"Answer from this document alone.\n\n{text}", questions)
    for name, (system, turns) in NON_LATIN.items():
        yield _thread("non-latin", name, system, turns)


def _thread(kind: str, group: str, system: str, turns: Sequence[tuple[str, str]]) -> Iterator[Prompt]:
    messages: list[Message] = [{"role": "system", "content": system}]
    for number, (said, answered) in enumerate(turns, 1):
        messages.append({"role": "user", "content": said})
        yield Prompt(f"{group}-{number}", kind, group, tuple(messages))
        messages.append({"role": "assistant", "content": answered})


def _siblings(
    kind: str, group: str, system: str, questions: Sequence[str], extra: Mapping[str, Any] | None = None
) -> Iterator[Prompt]:
    for number, question in enumerate(questions, 1):
        messages = ({"role": "system", "content": system}, {"role": "user", "content": question})
        yield Prompt(f"{group}-{number}", kind, group, messages, extra or {})


def _tool(name: str, does: str, *parameters: str) -> dict[str, Any]:
    properties = {parameter: {"type": "string"} for parameter in parameters}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "description": does, "parameters": schema}}


CHATS: dict[str, tuple[str, Sequence[tuple[str, str]]]] = {
    "cook": (
        "You are a patient cook who answers in one or two plain sentences.",
        [
            ("How long do I boil an egg so that the yolk stays soft?", "Six minutes from the moment the water boils."),
            ("And if the egg comes straight from the fridge?", "Then give it about a minute more."),
            ("What can I do with stale bread?", "Cut it into cubes and fry them in oil for croutons."),
            ("Which oil is best for that?", "A mild olive oil, not too hot."),
            ("My soup is too salty. Can I save it?", "Add unsalted water or a peeled potato and simmer."),
            ("How much rice for four people?", "About 300 grams of dry rice."),
            ("And how much water goes with it?", "Twice the volume of the rice."),
            ("Suggest a simple dessert with apples.", "Bake them whole with cinnamon and a little butter."),
        ],
    ),
    "travel": (
        "You help people to plan journeys by train. Be brief and concrete.",
        [
            ("I want to go from Vienna to Venice. Day train or night train?", "The night train saves a hotel night."),
            ("How long does the day train take?", "About seven and a half hours."),
            ("What should I see in Venice on one day?", "Walk from the station to San Marco and take a boat back."),
            ("Is it crowded in March?", "Less than in summer, apart from carnival."),
            ("What do I pack?", "Light layers, a rain jacket and comfortable shoes."),
            ("Can I take my bicycle on the train?", "Only on some trains and with a reservation."),
            ("Where could I go next from there?", "Ljubljana is close and easy to reach."),
            ("Write a packing list with five items.", "Passport, jacket, shoes, charger, water bottle."),
        ],
    ),
    "history": (
        "You are a teacher of history for children of twelve. Explain things simply.",
        [
            ("Why did the Romans build roads?", "So that soldiers, traders and letters could move quickly."),
            ("What were the roads made of?", "Layers of sand, gravel and flat stones."),
            ("Who walked on them?", "Soldiers, merchants, farmers and messengers."),
            ("How fast was a messenger?", "With fresh horses he could ride 80 kilometres in a day."),
            ("What did people eat in Rome?", "Bread, olives, cheese, vegetables and fish."),
            ("Did children go to school?", "Some did, mostly boys from families with money."),
            ("Why did the empire end?", "There were many reasons: wars, money troubles and quarrels at the top."),
            ("Give me three questions for a quiz about this.", "What were roads made of? Who used them? Who ruled?"),
        ],
    ),
    "health": (
        "You give general advice about sleep and exercise. You are friendly and short.",
        [
            ("I can't fall asleep. What helps?", "Go to bed at the same time and leave your phone outside."),
            ("Does coffee at four in the afternoon matter?", "For many people it does, since it acts for hours."),
            ("How much should an adult sleep?", "Seven to nine hours."),
            ("Is a nap a good idea?", "A short one of twenty minutes is fine."),
            ("What exercise can I do at home?", "Squats, push-ups and planks need no equipment."),
            ("How often per week?", "Three times is a good start."),
            ("My back hurts when I sit for long.", "Stand up every half hour and stretch."),
            ("Make a plan for one week.", "Monday, Wednesday and Friday exercise; walk on the other days."),
        ],
    ),
    "garden": (
        "You know all about small gardens and balconies. Answer in two sentences.",
        [
            ("Which herbs grow on a north balcony?", "Mint, parsley and chives cope with shade."),
            ("How often do I water them?", "When the upper soil feels dry, usually every second day."),
            ("There are small flies around the pots.", "Let the soil dry and cover it with sand."),
            ("When can tomatoes go outside?", "After the last frost, in many places in the middle of May."),
            ("How deep does a pot for them need to be?", "At least thirty centimetres."),
            ("Do they need support?", "Yes, tie them to a stick."),
            ("What grows well beside tomatoes?", "Basil and marigolds."),
            ("What is left to do in autumn?", "Cut back, clear away and cover what must survive the frost."),
        ],
    ),
    "office": (
        "You write short business letters and messages. Your tone is polite.",
        [
            ("Write a line that moves our meeting from Monday to Tuesday.", "Could we meet on Tuesday instead?"),
            ("Make it more formal.", "I would kindly ask you to move our meeting to Tuesday."),
            ("Now say sorry for the short notice.", "I apologise for the short notice."),
            ("Thank a client for an order of 40 chairs.", "Thank you very much for your order of 40 chairs."),
            ("Tell them that delivery takes three weeks.", "Delivery will take about three weeks."),
            ("Ask for the delivery address.", "Could you please send us the delivery address?"),
            ("Remind a customer of an unpaid invoice.", "May we remind you of our invoice, which is still open?"),
            ("Say no to an invitation, kindly.", "Thank you for the invitation; sadly I can't come."),
        ],
    ),
}

CODE: dict[str, tuple[str, Sequence[str]]] = {
    "stack": (
        "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n"
        "        self.items.append(item)\n\n    def pop(self):\n        return self.items.pop()\n",
        [
            "Add a method that tells whether the stack is empty.",
            "What happens when pop is called on an empty stack?",
            "Write a method peek.",
            "Write a test for push and pop.",
            "Rewrite push so that it takes several items.",
            "How would you limit the size of the stack to 100?",
            "Write a docstring for the class.",
            "Name one reason to use collections.deque here.",
        ],
    ),
    "mean": (
        "def mean(values):\n    total = 0\n    for value in values:\n        total += value\n"
        "    return total / len(values)\n",
        [
            "Write the same function with sum().",
            "Fix the error for an empty list: return None.",
            "Write a function median in the same style.",
            "Add type hints.",
            "Translate the function to JavaScript.",
            "What does mean([1, 2, 6]) return?",
            "Write a one line docstring.",
            "Write a function that returns the largest value.",
        ],
    ),
    "query": (
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT, amount REAL, day TEXT);\n"
        "CREATE TABLE customers (name TEXT PRIMARY KEY, city TEXT);\n",
        [
            "Write a query that sums the amounts of each customer.",
            "Write a query for all orders above 100.",
            "List the customers of Oslo.",
            "Join orders and customers and show the city of each order.",
            "Delete all orders before 2020.",
            "Which index would make searches by day faster?",
            "Insert one order for Ada with an amount of 25.",
            "Count the orders of each day.",
        ],
    ),
    "shell": (
        '#!/bin/sh\nset -eu\nfor file in *.log; do\n    gzip "$file"\ndone\necho "done"\n',
        [
            "What does this script do?",
            "Change it so that only files older than seven days are compressed.",
            "What does set -eu mean?",
            "Write the loop with find instead.",
            "Print the number of files at the end.",
            "What if there is no file that matches?",
            "Turn it into a function called pack.",
            "How do I run this script every night?",
        ],
    ),
    "server": (
        "from http.server import BaseHTTPRequestHandler, HTTPServer\n\nclass Hello(BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n        self.send_response(200)\n        self.end_headers()\n"
        '        self.wfile.write(b"hello")\n\nHTTPServer(("127.0.0.1", 8000), Hello).serve_forever()\n',
        [
            "Which port does it listen on?",
            "Return 404 for every path but /.",
            "Send the answer as JSON.",
            "How can I stop this server?",
            "Add a method for POST that echoes the body.",
            "Why is the text written as bytes?",
            "Write a client for it with urllib.",
            "Explain the class in one sentence.",
        ],
    ),
}

OBJECTS: dict[str, tuple[str, Sequence[str]]] = {
    "person": (
        'You read a sentence and answer with one JSON object with the keys "name", "age" and "city".',
        [
            "Ada is 36 and lives in London.",
            "My neighbour Tom, who turned 52, moved to Lyon.",
            "In Porto lives a girl of nine called Ines.",
            "Mr. Okoro from Lagos is 71 years old.",
            "Yuki, 24, Osaka.",
            "The mayor of Graz is called Elke and is 58.",
            "Born 30 years ago, Pablo has always lived in Quito.",
            "Freya is forty-one. Her home is Bergen.",
        ],
    ),
    "mood": (
        'You judge a review. Answer with one JSON object: "mood" is "good", "bad" or "mixed", "score" is 1 to 5.',
        [
            "The room was clean and the staff were kind.",
            "Never again. The food was cold and the waiter rude.",
            "Nice view, but far too expensive.",
            "It does what it should.",
            "I waited two hours and nobody came.",
            "Best pizza in town!",
            "The battery lasts long; the screen broke after a week.",
            "Five stars, would buy again.",
        ],
    ),
    "order": (
        'You turn an order into one JSON object with "items", a list of objects with "what" and "count".',
        [
            "Two coffees and a slice of cake, please.",
            "I'd like three apples.",
            "One tea, one water, four rolls.",
            "A dozen eggs and two bottles of milk.",
            "Just a newspaper.",
            "Ten pencils, five erasers and one ruler.",
            "Six oranges and no lemons.",
            "Bring me a soup and two spoons.",
        ],
    ),
    "event": (
        'You find the event in a text. Answer with one JSON object with "title", "day" and "hour".',
        [
            "Choir practice is on Monday at 19:00.",
            "Don't forget: dentist, Thursday, half past eight.",
            "We meet for lunch at noon on Friday.",
            "The parents' evening takes place on 3 May at 18:30.",
            "Football on Saturday, ten o'clock.",
            "The train leaves on Sunday at 6:12.",
            "Call with Berlin tomorrow at 15:00.",
            "Book club, every second Tuesday at eight in the evening.",
        ],
    ),
}

TOOLS: dict[str, tuple[Sequence[tuple[str, ...]], Sequence[str]]] = {
    "house": (
        [
            ("set_light", "Switch a lamp on or off.", "room", "state"),
            ("set_heating", "Set the temperature of a room.", "room", "degrees"),
        ],
        [
            "Turn on the light in the kitchen.",
            "It is too cold in the bathroom, make it 22 degrees.",
            "Lights off in the bedroom, please.",
            "Heat the office to 19.",
            "I can't see anything in the hall.",
            "Make the living room warmer: 21.",
            "Switch off the lamp in the cellar.",
            "The nursery should have 20 degrees.",
        ],
    ),
    "files": (
        [
            ("read_file", "Read a file.", "path"),
            ("write_file", "Write text to a file.", "path", "text"),
            ("list_files", "List the files of a folder.", "path"),
        ],
        [
            "Show me README.md.",
            "What is in the folder src?",
            "Write hello to notes.txt.",
            "Read the file config/settings.json.",
            "List everything in tests.",
            "Put the word done into state.txt.",
            "Open main.py.",
            "Which files are in docs/images?",
        ],
    ),
    "shop": (
        [
            ("search_products", "Search the shop.", "query"),
            ("add_to_cart", "Put a product into the cart.", "product", "count"),
        ],
        [
            "Find me a red bicycle.",
            "Put two notebooks into my cart.",
            "Do you have garden chairs?",
            "I take one of the blue lamps.",
            "Search for winter boots.",
            "Add three bottles of ink.",
            "I need a birthday card.",
            "One kettle into the cart, please.",
        ],
    ),
}

DOCUMENTS: dict[str, tuple[str, Sequence[str]]] = {
    "mill": (
        "The mill at Hollin Bridge was built in 1784 by Thomas Ackroyd, who had made his money with wool. It stood on "
        "the left bank of the river, where the water falls four metres within a hundred paces. In its first years it "
        "ground corn for eleven villages. Ackroyd paid his men nine shillings a week, which was more than the farms "
        "paid, and he lost them all the same whenever the harvest began.\n\nIn 1812 a flood took the wheel and half of "
        "the north wall. Ackroyd's daughter Ellen, who ran the mill by then, had a larger wheel made of iron in Leeds. "
        "It weighed six tons and came up the valley on a sledge drawn by fourteen horses. From 1813 on the mill spun "
        "cotton. At its height, in 1841, it gave work to 212 people, of whom 90 were under sixteen.\n\nSteam came late "
        "to the valley. When the railway reached Hollin in 1858, coal became cheap, and mills in the plain could "
        "undersell those on the river. Ellen's grandson Robert kept the wheel turning for sentimental reasons, as he "
        "wrote, until 1889. After that the building was a store for hay, a school for two winters, and from 1921 a "
        "youth hostel. A fire in 1936 destroyed the roof. The county bought the ruin in 1974 for one pound, and "
        "volunteers rebuilt it over nineteen years. Today the iron wheel turns again on the first Sunday of each month "
        "and drives a dynamo of 30 kilowatts, which lights the bridge.",
        [
            "When was the mill built?",
            "Who ran the mill in 1812?",
            "How heavy was the iron wheel?",
            "Why did the mill stop spinning?",
            "How many people worked there in 1841?",
            "What did the county pay for the ruin?",
            "Sum up the history of the mill in one sentence.",
            "What does the wheel drive today?",
        ],
    ),
    "manual": (
        "Model K-4 water kettle: manual. Before first use, fill the kettle to the upper mark, boil the water and pour "
        "it away; do this twice. The kettle holds between 0.5 and 1.7 litres. Never fill it above the upper mark, for "
        "boiling water may spill.\n\nOperation. Place the kettle on its base. Press the lever down; the blue lamp "
        "lights. The kettle switches itself off after the water has boiled for three seconds. To stop earlier, lift "
        "the lever. To keep water warm, press the round button within ten seconds after boiling: the kettle then holds "
        "80 degrees for 30 minutes. The green lamp shows this state.\n\nSafety. If the kettle is switched on without "
        "water, a fuse opens. Let it cool for fifteen minutes, then fill in cold water; the fuse closes by itself. Do "
        "not immerse the base in water. Keep the cord away from children. The outside becomes hot, up to 70 degrees "
        "near the spout.\n\nCare. Remove scale every month, or every two weeks where water is hard. Use 100 ml of "
        "vinegar on half a litre of water, let it stand for one hour and do not boil it. Rinse three times. Clean the "
        "filter in the spout under running water; it pulls out upwards. Do not use scouring powder.\n\nFaults. The "
        "lamp does not light: check the plug. The kettle switches off too early: remove scale. Water tastes of "
        "plastic: boil and pour away two more fillings with a spoon of baking soda. Guarantee: two years from the day "
        "of purchase, filters excepted.",
        [
            "How much water does the kettle hold?",
            "What does the green lamp mean?",
            "How do I remove scale?",
            "The kettle was switched on without water. What now?",
            "How long is the guarantee?",
            "The water tastes of plastic. What can I do?",
            "How hot does the outside become?",
            "List the safety rules.",
        ],
    ),
    "minutes": (
        "Minutes of the meeting of the allotment society Sonnenhang, 14 March. Present: 23 of 31 members; chair: Mrs. "
        "Petersen; minutes: Mr. Abebe.\n\n1. Accounts. Mr. Lindqvist reports an income of 4,310 euros and expenses of "
        "3,925 euros. The largest item was the repair of the pump (1,280 euros). The auditors found no errors. The "
        "accounts are approved with one abstention.\n\n2. Water. The pump runs from 1 April to 15 October. Members on "
        "the upper path complain of low pressure in the evening. It is agreed that the upper path waters on even days "
        "and the lower path on odd days, for a trial until the end of June. Mrs. Osei will keep a list.\n\n3. Hedges. "
        "Three hedges along the public way are higher than the permitted 1.25 metres (plots 7, 12 and 19). The owners "
        "have until 30 April to cut them; after that the society has it done at their cost.\n\n4. Bees. Mr. Novak "
        "applies to keep two hives on plot 22. After discussion of the distance to the playground (45 metres) the "
        "meeting agrees by 17 votes to 4, with 2 abstentions, on condition that he puts up a fence.\n\n5. Summer "
        "feast. It takes place on 12 July from three o'clock. Mrs. Haddad sees to the music, the youth group to the "
        "cake. The society pays up to 250 euros.\n\n6. Other business. The compost heap behind plot 3 must go by "
        "Easter. Mr. Lindqvist looks for someone to take over the accounts next year. Next meeting: 9 September.",
        [
            "Who keeps the minutes?",
            "What was the largest expense?",
            "On which days does the upper path water?",
            "Which hedges are too high?",
            "What did the meeting decide about the bees?",
            "When is the summer feast?",
            "Who is present? Give the number.",
            "When is the next meeting?",
        ],
    ),
}

NON_LATIN: dict[str, tuple[str, Sequence[tuple[str, str]]]] = {
    "chinese": (
        "你是一个友好的助手，请用一句话回答。",
        [
            ("北京的冬天冷吗？", "冷，气温常常低于零度。"),
            ("去故宫要多长时间？", "最好留半天。"),
            ("附近有什么好吃的？", "可以试试烤鸭和炸酱面。"),
            ("茶和咖啡哪个更健康？", "适量饮用都可以。"),
            ("怎样学好汉字？", "每天写十个字，常常复习。"),
            ("请写一句生日祝福。", "祝你生日快乐，天天开心。"),
            ("一年有多少天？", "平年有三百六十五天。"),
            ("推荐一本书。", "可以读《西游记》。"),
        ],
    ),
    "russian": (
        "Ты вежливый помощник. Отвечай коротко.",
        [
            ("Какая столица Франции?", "Париж."),
            ("Сколько дней в феврале?", "Обычно двадцать восемь."),
            ("Как сварить борщ?", "Сварите бульон, добавьте свёклу, капусту и картофель."),
            ("Что взять с собой в поход?", "Палатку, спальник, воду и карту."),
            ("Когда лучше сажать картофель?", "В начале мая."),
            ("Напиши короткое поздравление с Новым годом.", "С Новым годом! Счастья и здоровья!"),
            ("Чем отличается кот от собаки?", "Кот более независим."),
            ("Посоветуй фильм на вечер.", "Посмотрите старую комедию."),
        ],
    ),
    "arabic": (
        "أنت مساعد لطيف. أجب بجملة واحدة.",
        [
            ("ما هي عاصمة مصر؟", "القاهرة."),
            ("كم عدد أيام الأسبوع؟", "سبعة أيام."),
            ("كيف أصنع الشاي بالنعناع؟", "اغل الماء وأضف الشاي والنعناع والسكر."),
            ("ما هو أطول نهر في أفريقيا؟", "نهر النيل."),
            ("اكتب تحية الصباح.", "صباح الخير، أتمنى لك يوما سعيدا."),
            ("أين تقع مدينة مراكش؟", "تقع في المغرب."),
            ("ما فائدة الرياضة؟", "تقوي القلب وتحسن المزاج."),
            ("اقترح هدية لصديق.", "كتاب جميل أو علبة تمر."),
        ],
    ),
    "hindi": (
        "आप एक विनम्र सहायक हैं। एक वाक्य में उत्तर दें।",
        [
            ("भारत की राजधानी क्या है?", "नई दिल्ली।"),
            ("चाय कैसे बनाते हैं?", "पानी, दूध, चीनी और चाय पत्ती उबालिए।"),
            ("साल में कितने महीने होते हैं?", "बारह महीने।"),
            ("आम कब पकते हैं?", "गर्मियों में।"),
            ("योग के क्या लाभ हैं?", "शरीर लचीला और मन शांत होता है।"),
            ("एक छोटी कविता लिखो।", "चाँद निकला, तारे आए, सपनों ने गीत सुनाए।"),
            ("दिल्ली से आगरा कितनी दूर है?", "लगभग दो सौ तीस किलोमीटर।"),
            ("एक अच्छी आदत बताओ।", "सुबह जल्दी उठना।"),
        ],
    ),
    "japanese": (
        "あなたは親切なアシスタントです。短く答えてください。",
        [
            ("東京から京都まで新幹線でどのくらいですか。", "約二時間十五分です。"),
            ("味噌汁の作り方を教えてください。", "だしに具を入れて煮て、味噌を溶きます。"),
            ("春に咲く花は何ですか。", "桜や菜の花です。"),
            ("一週間は何日ですか。", "七日です。"),
            ("雨の日に家でできることは。", "読書や料理ができます。"),
            ("友達への短い手紙を書いてください。", "お元気ですか。また会いましょう。"),
            ("日本で一番高い山は。", "富士山です。"),
            ("おすすめの朝ごはんは。", "ご飯と味噌汁と卵です。"),
        ],
    ),
}
