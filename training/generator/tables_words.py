"""Words, names and places that the generator draws from."""

from __future__ import annotations

from training.generator.text import words

NAMES = words("""
    Anna Ben Clara David Emma Felix Grace Henry Iris Jack Kate Leo Mia Noah Olivia Paul Quinn Rosa Sam Tom
    Uma Victor Wendy Yara Zoe Alice Bob Carol Dan Ella Frank Gina Hugo Ivan Julia Karl Lena Marco Nina Oscar
    Petra Ralf Sara Tim Vera Walt Ada Boris Cleo Dora Erik Fay Greta Hans Ines Jonas Kira Lars Maya Nils
    Otto Pia Rita Sven Tara Ulla
""")
SURNAMES = words("""
    Smith Jones Brown Taylor Wilson Davies Evans Thomas Roberts Walker Wright Hall Green Wood Clarke Turner
    Hill Moore Cooper King Baker Ward Morris Scott Young Allen Adams Bell Carter Fisher Grant Hunt Knight
    Lane Mason Palmer
""")
CITIES = words("""
    Paris London Berlin Madrid Rome Vienna Prague Warsaw Lisbon Dublin Oslo Stockholm Helsinki Copenhagen
    Athens Brussels Amsterdam Zurich Geneva Munich Hamburg Milan Naples Venice Barcelona Seville Porto Tokyo
    Kyoto Osaka Seoul Beijing Shanghai Delhi Mumbai Bangkok Hanoi Singapore Jakarta Manila Sydney Melbourne
    Perth Auckland Toronto Montreal Vancouver Boston Chicago Seattle Denver Austin Dallas Miami Atlanta
    Houston Phoenix Lima Bogota Santiago Cairo Nairobi Lagos Accra Dakar Tunis Istanbul Ankara Dubai Doha
    Tehran Kyiv Riga Tallinn Vilnius Budapest Belgrade Sofia Krakow Lyon Nice
""")
ANIMALS = words("""
    fox rabbit owl bear mouse wolf hedgehog badger squirrel frog deer crow otter beaver cat dog goat donkey
    horse sparrow heron turtle snail spider bee swan goose hare mole robin lynx seal whale crab ferret toad
    moth magpie
""")
FRUITS = words("""
    apple banana cherry orange pear plum peach mango grape lemon lime kiwi melon fig apricot papaya
""")
VEGETABLES = words("""
    carrot potato onion tomato cabbage spinach pea bean leek celery radish turnip pepper garlic
""")
COLOURS = words("""
    red blue green yellow orange purple pink brown black white grey silver gold
""")
TOOLS_HAND = words("""
    hammer saw drill wrench pliers chisel file screwdriver axe shovel rake knife
""")
INSTRUMENTS = words("""
    piano guitar violin flute drum trumpet cello harp clarinet oboe saxophone trombone
""")
FURNITURE = words("chair table bed sofa desk shelf wardrobe bench stool cupboard")
SPORTS = words("""
    football tennis swimming rowing cycling hockey golf boxing running skiing basketball rugby
""")
JOBS = words("""
    teacher doctor baker farmer pilot nurse painter writer carpenter engineer lawyer chef
""")
VEHICLES = words("car bus train bicycle plane boat truck tram ship scooter")
LANGS = words("Python Java Rust Go Ruby Swift Kotlin Haskell Lua Perl Scala Erlang")
CLOTHES = words("shirt coat hat scarf glove sock shoe jacket dress belt jumper")
INSECTS = words("ant bee wasp beetle moth fly cricket mosquito ladybird dragonfly")
TREES = words("oak pine birch maple willow elm ash beech cedar spruce")
FLOWERS = words("rose tulip daisy lily violet orchid poppy iris lavender sunflower")
METALS = words("iron gold silver copper tin lead zinc nickel aluminium titanium")
BIRDS = words("sparrow robin eagle owl crow heron swan pigeon finch gull")

CATEGORIES: dict[str, list[str]] = {
    "fruits": FRUITS, "vegetables": VEGETABLES, "colours": COLOURS, "tools": TOOLS_HAND, "animals": ANIMALS[:24],
    "musical instruments": INSTRUMENTS, "pieces of furniture": FURNITURE, "sports": SPORTS, "jobs": JOBS,
    "vehicles": VEHICLES, "programming languages": LANGS, "pieces of clothing": CLOTHES, "insects": INSECTS,
    "trees": TREES, "flowers": FLOWERS, "metals": METALS, "birds": BIRDS,
    "days of the week": words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday"),
    "planets": words("Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune"),
}  # fmt: skip

# Simple words whose letters can be counted, reversed and spelled.
WORDS = words("""
    apple bread chair dream earth flame grass house island jungle kitten lemon market night ocean paper
    queen river stone table under violin water yellow bridge candle dragon engine forest garden hammer
    insect jacket ladder mirror number orange pencil rabbit silver ticket window button cactus desert falcon
    guitar helmet anchor basket carpet doctor feather ginger honey ivory jewel kettle lamp motor nest olive
    piano quilt rocket shadow tiger umbrella valley wagon zebra book cloud door egg fish gate hill ice jar
    key leaf moon nut oven pond rain ship tree vase wind yard milk sand snow star
""")

SYNONYMS: dict[str, str] = dict(
    pair.split("=")
    for pair in words("""
    big=large small=little fast=quick happy=glad sad=unhappy angry=furious smart=clever begin=start
    end=finish help=assist buy=purchase make=create look=watch talk=speak hard=difficult easy=simple
    rich=wealthy brave=courageous calm=peaceful quiet=silent strange=odd tired=weary scared=afraid
    pretty=beautiful funny=amusing important=essential correct=right mistake=error answer=reply
    choose=select build=construct repair=fix hurry=rush shout=yell jump=leap near=close thin=slim
    cold=chilly old=ancient new=modern kind=gentle whole=entire
""")
)

TRANSLATIONS: dict[str, dict[str, str]] = {
    "French": dict(p.split("=") for p in words("""
    house=maison cat=chat dog=chien water=eau bread=pain book=livre red=rouge blue=bleu green=vert
    tree=arbre sun=soleil moon=lune milk=lait one=un two=deux three=trois hello=bonjour yes=oui night=nuit
    day=jour apple=pomme fish=poisson
""")),
    "German": dict(p.split("=") for p in words("""
    house=Haus cat=Katze dog=Hund water=Wasser bread=Brot book=Buch red=rot blue=blau green=gruen tree=Baum
    sun=Sonne moon=Mond milk=Milch one=eins two=zwei three=drei hello=hallo yes=ja night=Nacht day=Tag
    apple=Apfel fish=Fisch
""")),
    "Spanish": dict(p.split("=") for p in words("""
    house=casa cat=gato dog=perro water=agua bread=pan book=libro red=rojo blue=azul green=verde tree=arbol
    sun=sol moon=luna milk=leche one=uno two=dos three=tres hello=hola yes=si night=noche day=dia
    apple=manzana fish=pez
""")),
}  # fmt: skip
