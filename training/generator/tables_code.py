"""Recipes of small Python functions. `{x}` stands for the main argument's name, `{y}` for a second one's."""

from __future__ import annotations

from typing import NamedTuple

from training.generator.text import words


class Recipe(NamedTuple):
    """A function's recipe: its description, possible names, possible argument names (`x`, `y`), return type and
    body."""

    does: str
    names: str
    x: str
    y: str
    returns: str
    body: str


_NUM = "n number value x num"
_NUMS = "numbers values nums xs data items"
_TEXT = "text s string line word"
_LIST = "items values elements seq data"
_MAP = "mapping table d counts data"

_ROWS = [
    ("Return True if {x} is even", "is_even even check_even", _NUM, "", "bool", "return {x} % 2 == 0"),
    ("Return True if {x} is odd", "is_odd odd check_odd", _NUM, "", "bool", "return {x} % 2 == 1"),
    ("Return the square of {x}", "square squared", _NUM, "", "int", "return {x} * {x}"),
    ("Return the cube of {x}", "cube cubed", _NUM, "", "int", "return {x} ** 3"),
    ("Return the sum of {x} and {y}", "add add_numbers plus", "a x first", "b y second", "int", "return {x} + {y}"),
    ("Return the difference of {x} and {y}", "subtract minus difference", "a x first", "b y second", "int",
     "return {x} - {y}"),
    ("Return the product of {x} and {y}", "multiply product times", "a x first", "b y second", "int",
     "return {x} * {y}"),
    ("Return {x} divided by {y}", "divide safe_divide quotient", "a x numerator", "b y denominator", "float",
     "if {y} == 0:\n    raise ValueError(\"{y} must not be zero\")\nreturn {x} / {y}"),
    ("Return the larger of {x} and {y}", "maximum larger max_of_two", "a x first", "b y second", "int",
     "if {x} > {y}:\n    return {x}\nreturn {y}"),
    ("Return the smaller of {x} and {y}", "minimum smaller min_of_two", "a x first", "b y second", "int",
     "if {x} < {y}:\n    return {x}\nreturn {y}"),
    ("Return the factorial of {x}", "factorial fact compute_factorial", "n number k", "", "int",
     "result = 1\nfor i in range(2, {x} + 1):\n    result *= i\nreturn result"),
    ("Return the {x}-th Fibonacci number", "fibonacci fib nth_fibonacci", "n k", "", "int",
     "a, b = 0, 1\nfor _ in range({x}):\n    a, b = b, a + b\nreturn a"),
    ("Return True if {x} is a prime number", "is_prime prime check_prime", "n number num", "", "bool",
     "if {x} < 2:\n    return False\nfor i in range(2, int({x} ** 0.5) + 1):\n    if {x} % i == 0:\n"
     "        return False\nreturn True"),
    ("Return the greatest common divisor of {x} and {y}", "gcd greatest_common_divisor", "a m", "b n", "int",
     "while {y}:\n    {x}, {y} = {y}, {x} % {y}\nreturn {x}"),
    ("Return the sum of the numbers from 1 to {x}", "sum_to triangle_number sum_up_to", "n limit", "", "int",
     "return {x} * ({x} + 1) // 2"),
    ("Return the sum of the digits of {x}", "digit_sum sum_digits", "n number", "", "int",
     "return sum(int(digit) for digit in str({x}))"),
    ("Return {x} limited to the range from low to high", "clamp limit clip", "value x number", "", "float",
     "return max(low, min({x}, high))"),
    ("Return the absolute value of {x}", "absolute absolute_value magnitude", _NUM, "", "int",
     "if {x} < 0:\n    return -{x}\nreturn {x}"),
    ("Return the sum of {x}", "total sum_all add_up", _NUMS, "", "int",
     "total = 0\nfor value in {x}:\n    total += value\nreturn total"),
    ("Return the average of {x}", "average mean compute_average", _NUMS, "", "float",
     "if not {x}:\n    return 0.0\nreturn sum({x}) / len({x})"),
    ("Return the largest number in {x}", "largest find_max max_value", _NUMS, "", "int",
     "best = {x}[0]\nfor value in {x}:\n    if value > best:\n        best = value\nreturn best"),
    ("Return the smallest number in {x}", "smallest find_min min_value", _NUMS, "", "int",
     "best = {x}[0]\nfor value in {x}:\n    if value < best:\n        best = value\nreturn best"),
    ("Return the product of all numbers in {x}", "product_of multiply_all", _NUMS, "", "int",
     "result = 1\nfor value in {x}:\n    result *= value\nreturn result"),
    ("Return the median of {x}", "median middle_value", _NUMS, "", "float",
     "ordered = sorted({x})\nmiddle = len(ordered) // 2\nif len(ordered) % 2:\n    return ordered[middle]\n"
     "return (ordered[middle - 1] + ordered[middle]) / 2"),
    ("Return the running totals of {x}", "running_total cumulative_sum prefix_sums", _NUMS, "", "list",
     "total = 0\nresult = []\nfor value in {x}:\n    total += value\n    result.append(total)\nreturn result"),
    ("Return {x} reversed", "reverse reverse_string reversed_text", _TEXT, "", "str", "return {x}[::-1]"),
    ("Return True if {x} is a palindrome", "is_palindrome palindrome check_palindrome", _TEXT, "", "bool",
     "cleaned = {x}.lower().replace(\" \", \"\")\nreturn cleaned == cleaned[::-1]"),
    ("Return the number of vowels in {x}", "count_vowels vowel_count number_of_vowels", _TEXT, "", "int",
     "return sum(1 for letter in {x}.lower() if letter in \"aeiou\")"),
    ("Return the number of words in {x}", "count_words word_count number_of_words", _TEXT, "", "int",
     "return len({x}.split())"),
    ("Return the longest word in {x}", "longest_word find_longest", "text sentence line", "", "str",
     "return max({x}.split(), key=len)"),
    ("Return the words of {x} in reverse order", "reverse_words flip_words", "text sentence line", "", "str",
     "return \" \".join(reversed({x}.split()))"),
    ("Return {x} with the first letter of each word in upper case", "title_case capitalize_words",
     "text sentence line", "", "str", "return \" \".join(word.capitalize() for word in {x}.split())"),
    ("Return {x} without spaces", "remove_spaces strip_spaces", _TEXT, "", "str", "return {x}.replace(\" \", \"\")"),
    ("Return how often {y} occurs in {x}", "count_char count_letter occurrences", "text s", "letter char c", "int",
     "return {x}.count({y})"),
    ("Return True if {x} and {y} are anagrams", "are_anagrams is_anagram anagrams", "a first", "b second", "bool",
     "return sorted({x}.lower()) == sorted({y}.lower())"),
    ("Return {x} repeated {y} times", "repeat repeat_text", "text s", "n times", "str", "return {x} * {y}"),
    ("Return {x} cut to {y} characters", "truncate shorten cut", "text s", "limit length", "str",
     "if len({x}) <= {y}:\n    return {x}\nreturn {x}[: {y} - 3] + \"...\""),
    ("Return {x} in snake case", "to_snake_case snake_case", "name text", "", "str",
     "return \"_\".join({x}.lower().split())"),
    ("Return the items of {x} without duplicates", "unique remove_duplicates deduplicate", _LIST, "", "list",
     "seen = set()\nresult = []\nfor item in {x}:\n    if item not in seen:\n        seen.add(item)\n"
     "        result.append(item)\nreturn result"),
    ("Return how often each item occurs in {x}", "count_items frequencies tally", _LIST, "", "dict",
     "counts = {{}}\nfor item in {x}:\n    counts[item] = counts.get(item, 0) + 1\nreturn counts"),
    ("Return the first item of {x}, or None", "first first_item head", _LIST, "", "object",
     "if not {x}:\n    return None\nreturn {x}[0]"),
    ("Return the last item of {x}, or None", "last last_item tail", _LIST, "", "object",
     "if not {x}:\n    return None\nreturn {x}[-1]"),
    ("Return a flat list of all items in {x}", "flatten flatten_list", "lists rows nested groups", "", "list",
     "result = []\nfor inner in {x}:\n    result.extend(inner)\nreturn result"),
    ("Split {x} into lists of {y} items", "chunk split_list batches", "items values", "size n", "list",
     "return [{x}[i : i + {y}] for i in range(0, len({x}), {y})]"),
    ("Return the items that are in both {x} and {y}", "intersection common_items shared", "a first left",
     "b second right", "list", "return [item for item in {x} if item in {y}]"),
    ("Return the items of {x} that are not in {y}", "without exclude remove_all", "items a first", "others b second",
     "list", "return [item for item in {x} if item not in {y}]"),
    ("Return pairs of the items of {x} and {y}", "pairs pair_up zip_lists", "a first left", "b second right", "list",
     "return list(zip({x}, {y}))"),
    ("Return the position of {y} in {x}, or -1", "find index_of linear_search", "items values", "target wanted",
     "int", "for i, item in enumerate({x}):\n    if item == {y}:\n        return i\nreturn -1"),
    ("Find {y} in the sorted list {x} by binary search", "binary_search bisect_search", "items values numbers",
     "target wanted", "int",
     "low, high = 0, len({x}) - 1\nwhile low <= high:\n    middle = (low + high) // 2\n    if {x}[middle] == {y}:\n"
     "        return middle\n    if {x}[middle] < {y}:\n        low = middle + 1\n    else:\n"
     "        high = middle - 1\n"
     "return -1"),
    ("Sort {x} with bubble sort", "bubble_sort sort_list", "items values numbers", "", "list",
     "result = list({x})\nfor i in range(len(result)):\n    for j in range(len(result) - i - 1):\n"
     "        if result[j] > result[j + 1]:\n            result[j], result[j + 1] = result[j + 1], result[j]\n"
     "return result"),
    ("Return {x} with keys and values swapped", "invert swap_keys invert_dict", _MAP, "", "dict",
     "return {{value: key for key, value in {x}.items()}}"),
    ("Return {x} and {y} merged", "merge merge_dicts combine", "a first left", "b second right", "dict",
     "result = dict({x})\nresult.update({y})\nreturn result"),
    ("Return the key with the largest value in {x}", "best_key most_common argmax", _MAP, "", "str",
     "return max({x}, key={x}.get)"),
    ("Return the keys of {x} in order", "sorted_keys ordered_keys", _MAP, "", "list", "return sorted({x})"),
    ("Group the words in {x} by their first letter", "group_by_letter group_words", "words names", "", "dict",
     "groups = {{}}\nfor word in {x}:\n    groups.setdefault(word[0], []).append(word)\nreturn groups"),
    ("Return {x} in degrees Fahrenheit", "to_fahrenheit celsius_to_fahrenheit", "celsius degrees c", "", "float",
     "return {x} * 9 / 5 + 32"),
    ("Return {x} in degrees Celsius", "to_celsius fahrenheit_to_celsius", "fahrenheit degrees f", "", "float",
     "return ({x} - 32) * 5 / 9"),
    ("Return True if {x} is a leap year", "is_leap_year leap_year", "year y", "", "bool",
     "return {x} % 4 == 0 and ({x} % 100 != 0 or {x} % 400 == 0)"),
    ("Return the area of a circle with radius {x}", "circle_area area_of_circle", "radius r", "", "float",
     "return 3.14159 * {x} ** 2"),
    ("Return the area of a rectangle", "rectangle_area area", "width w", "height h", "float", "return {x} * {y}"),
    ("Return the distance between {x} and {y}", "distance gap", "a start", "b end", "float", "return abs({x} - {y})"),
    ("Return the lines of the file at {x}", "read_lines load_lines", "path filename", "", "list",
     "with open({x}, encoding=\"utf-8\") as f:\n    return [line.rstrip(\"\\n\") for line in f]"),
    ("Write {y} to the file at {x}", "write_text save_text", "path filename", "text content", "None",
     "with open({x}, \"w\", encoding=\"utf-8\") as f:\n    f.write({y})"),
    ("Return the JSON object in the file at {x}", "load_json read_json", "path filename", "", "dict",
     "with open({x}, encoding=\"utf-8\") as f:\n    return json.load(f)"),
]  # fmt: skip

RECIPES = [Recipe(*row) for row in _ROWS]

# Parts of composed functions: what to keep, and what to do with it.
NUMBER_TESTS = {
    "even": "{v} % 2 == 0", "odd": "{v} % 2 == 1", "positive": "{v} > 0", "negative": "{v} < 0", "non-zero": "{v} != 0",
}  # fmt: skip
TEXT_TESTS = {"long": "len({v}) > {n}", "short": "len({v}) < {n}", "upper case": "{v}.isupper()",
              "lower case": "{v}.islower()", "numeric": "{v}.isdigit()", "non-empty": "{v}"}  # fmt: skip
FIELDS = words("""
    name age email price city title author year color size weight width height score level status owner path
    label count amount date country phone address rating stock code currency speed
""")
FIELD_TYPES = {"age": "int", "price": "float", "year": "int", "size": "int", "weight": "float", "width": "float",
               "height": "float", "score": "int", "level": "int", "count": "int", "amount": "float", "rating": "float",
               "stock": "int", "speed": "float"}  # fmt: skip
CLASS_NAMES = words("""
    User Book Car Product Order Point Employee Student Account Room Ticket Player Song Movie City Course
    Task Event Invoice Sensor Vehicle Customer Package Recipe Message Device Animal Planet Team Shop Server
    Robot Ship
""")
CONTAINERS = {"Stack": "push pop", "Queue": "enqueue dequeue", "Basket": "add remove", "Library": "add remove",
              "Inventory": "add remove", "Playlist": "add remove", "Registry": "register unregister",
              "Collection": "add discard"}  # fmt: skip
