"""Tools: their names, arguments, and the wordings of requests for them.

An argument is `name:kind`, where a kind names the values that it may have. A request contains the arguments' names in
braces.
"""

from __future__ import annotations

from typing import NamedTuple

from training.generator import tables_words as w
from training.generator.text import words


class Tool(NamedTuple):
    name: str
    arguments: tuple[tuple[str, str], ...]
    requests: tuple[str, ...]

    def signature(self) -> str:
        return f"{self.name}({', '.join(a for a, _ in self.arguments)})"


CURRENCIES = words("""
    USD EUR GBP JPY CHF SEK NOK DKK PLN CZK CAD AUD NZD INR BRL MXN ZAR SGD HKD TRY
""")
SUBJECTS = [
    "lunch dinner the report the budget the meeting the invoice the picnic the concert the exam the garden",
    "the holiday the contract the party the delivery the interview the workshop the flight the rent",
]
TOPICS = [
    s.strip()
    for line in SUBJECTS
    for s in line.replace(" the ", ",the ").replace("lunch dinner", "lunch,dinner").split(",")
]
TASKS = [
    "water the plants",
    "call the dentist",
    "pay the rent",
    "buy milk",
    "send the report",
    "feed the cat",
    "book a table",
    "clean the kitchen",
    "pick up the parcel",
    "wash the car",
    "renew the passport",
    "check the oven",
    "take out the bins",
    "charge the phone",
    "walk the dog",
    "order new shoes",
    "fix the door",
    "read the contract",
    "return the books",
    "bake a cake",
]
ROOMS = words("""
    kitchen bedroom bathroom hallway garage office attic cellar garden lounge
""")
SYMBOLS = words("""
    AAPL MSFT GOOG AMZN NVDA TSLA IBM INTC AMD ORCL NFLX SAP SONY ADBE CSCO UBER
""")
UNITS = words("km miles metres feet inches kg pounds grams ounces litres gallons")
GENRES = words("jazz rock pop classical folk blues techno opera reggae soul")
CUISINES = words("""
    italian japanese mexican indian thai greek chinese french spanish turkish
""")
LANGS = words("""
    French German Spanish Italian Dutch Swedish Polish Greek Turkish Japanese Korean Arabic
""")
FILES = [
    f"{a}.{b}"
    for a in words("notes report data config main index users log backup todo")
    for b in ["txt", "csv", "json", "py", "md"]
]
TABLES = words("users orders products invoices customers sessions events payments")

# kind -> values; numbers are ranges (low, high).
VALUES: dict[str, list[str]] = {
    "city": w.CITIES,
    "name": w.NAMES,
    "currency": CURRENCIES,
    "topic": TOPICS,
    "task": TASKS,
    "room": ROOMS,
    "symbol": SYMBOLS,
    "unit": UNITS,
    "genre": GENRES,
    "cuisine": CUISINES,
    "language": LANGS,
    "file": FILES,
    "table": TABLES,
    "word": w.WORDS,
    "colour": w.COLOURS,
    "day": words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday"),
    "degrees": ["celsius", "fahrenheit"],
    "fruit": w.FRUITS,
    "operation": ["add", "subtract", "multiply", "divide"],
    "direction": ["north", "south", "east", "west"],
}
RANGES = {
    "small": (1, 20),
    "amount": (5, 999),
    "percent": (1, 100),
    "minutes": (1, 90),
    "id": (1000, 9999),
    "temperature": (15, 28),
}


def _tool(name: str, arguments: str, *requests: str) -> Tool:
    pairs = tuple((a.split(":")[0], a.split(":")[1]) for a in arguments.split())
    return Tool(name, pairs, requests)


TOOLS = [
    _tool(
        "get_weather",
        "city:city unit:degrees",
        "What is the weather in {city} in {unit}?",
        "Get the weather for {city} in {unit}.",
        "How is the weather in {city}? Use {unit}.",
    ),
    _tool(
        "get_forecast",
        "city:city day:day",
        "What will the weather be in {city} on {day}?",
        "Give me the forecast for {city} on {day}.",
        "Will it rain in {city} on {day}?",
    ),
    _tool(
        "get_time",
        "city:city",
        "What time is it in {city}?",
        "Tell me the current time in {city}.",
        "What is the local time in {city}?",
    ),
    _tool(
        "convert_currency",
        "amount:amount from:currency to:currency",
        "Convert {amount} {from} to {to}.",
        "How much is {amount} {from} in {to}?",
        "Change {amount} {from} into {to}.",
    ),
    _tool(
        "convert_units",
        "value:amount from:unit to:unit",
        "Convert {value} {from} to {to}.",
        "How many {to} are {value} {from}?",
        "Change {value} {from} into {to}.",
    ),
    _tool("set_alarm", "time:time", "Set an alarm for {time}.", "Wake me up at {time}.", "I need an alarm at {time}."),
    _tool(
        "set_timer",
        "minutes:minutes",
        "Set a timer for {minutes} minutes.",
        "Start a {minutes} minute timer.",
        "Count down {minutes} minutes.",
    ),
    _tool(
        "add_reminder",
        "task:task day:day",
        "Remind me to {task} on {day}.",
        "Add a reminder to {task} on {day}.",
        "On {day}, remind me to {task}.",
    ),
    _tool(
        "create_event",
        "title:topic day:day time:time",
        "Create an event for {title} on {day} at {time}.",
        "Put {title} in my calendar on {day} at {time}.",
        "Schedule {title} for {day} at {time}.",
    ),
    _tool(
        "send_message",
        "to:name text:task",
        "Send a message to {to}: {text}",
        "Tell {to} to {text}.",
        "Message {to} and say: {text}",
    ),
    _tool(
        "send_email",
        "to:email subject:topic",
        "Send an email to {to} about {subject}.",
        "Write to {to} with the subject {subject}.",
        "Email {to} about {subject}.",
    ),
    _tool("call_contact", "name:name", "Call {name}.", "Phone {name} please.", "Make a call to {name}."),
    _tool(
        "book_flight",
        "from:city to:city day:day",
        "Book a flight from {from} to {to} on {day}.",
        "I want to fly from {from} to {to} on {day}.",
        "Get me a flight on {day} from {from} to {to}.",
    ),
    _tool(
        "find_train",
        "from:city to:city",
        "Find a train from {from} to {to}.",
        "When does the next train go from {from} to {to}?",
        "Look up trains from {from} to {to}.",
    ),
    _tool(
        "book_hotel",
        "city:city nights:small",
        "Book a hotel in {city} for {nights} nights.",
        "Reserve {nights} nights in a hotel in {city}.",
        "I need a hotel in {city} for {nights} nights.",
    ),
    _tool(
        "book_table",
        "cuisine:cuisine people:small time:time",
        "Book a table for {people} at a {cuisine} place at {time}.",
        "Reserve a {cuisine} table for {people} people at {time}.",
    ),
    _tool(
        "get_stock_price",
        "symbol:symbol",
        "What is the price of {symbol}?",
        "Get the stock price of {symbol}.",
        "How is {symbol} trading today?",
    ),
    _tool("play_music", "genre:genre", "Play some {genre} music.", "Put on {genre}.", "I want to hear {genre}."),
    _tool("set_volume", "level:percent", "Set the volume to {level}.", "Turn the volume to {level} percent."),
    _tool(
        "set_light",
        "room:room level:percent",
        "Set the light in the {room} to {level}.",
        "Dim the {room} light to {level} percent.",
        "Turn the lights in the {room} to {level}.",
    ),
    _tool(
        "set_heating",
        "room:room temperature:temperature",
        "Heat the {room} to {temperature} degrees.",
        "Set the {room} to {temperature} degrees.",
    ),
    _tool(
        "translate",
        "text:word to:language",
        "Look up {text} in {to} with the translator.",
        "Use the translator: {text} into {to}.",
        "Run the translator on {text} for {to}.",
    ),
    _tool(
        "search_web",
        "query:query",
        "Search the web for {query}.",
        "Look up {query} online.",
        "Find pages about {query}.",
    ),
    _tool("read_file", "path:file", "Read the file {path}.", "Open {path}.", "Show me the contents of {path}."),
    _tool("delete_file", "path:file", "Delete the file {path}.", "Remove {path}."),
    _tool(
        "count_rows", "table:table", "Count the rows in the table {table}.", "How many rows are in the table {table}?"
    ),
    _tool(
        "get_order",
        "order_id:id",
        "Where is order {order_id}?",
        "Show order {order_id}.",
        "What is the status of order {order_id}?",
    ),
    _tool("cancel_order", "order_id:id", "Cancel order {order_id}.", "Please cancel the order {order_id}."),
    _tool(
        "add_to_cart",
        "item:fruit quantity:small",
        "Add {quantity} {item}s to the cart.",
        "Put {quantity} {item}s in my basket.",
    ),
    _tool(
        "calculate",
        "operation:operation a:amount b:amount",
        "Use the calculator to {operation} {a} and {b}.",
        "With the calculator, {operation} {a} and {b}.",
    ),
    _tool(
        "get_distance",
        "from:city to:city unit:unit",
        "How far is it from {from} to {to} in {unit}?",
        "Give the distance from {from} to {to} in {unit}.",
    ),
    _tool(
        "find_restaurant",
        "cuisine:cuisine city:city",
        "Find a {cuisine} restaurant in {city}.",
        "Where can I eat {cuisine} food in {city}?",
    ),
]
BY_NAME = {tool.name: tool for tool in TOOLS}
