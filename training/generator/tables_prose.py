"""Large tables of words for prose: the larger they are, the less certain the next word."""

from __future__ import annotations

from training.generator.text import words

ADJECTIVES = words("""
    old young tall small quiet restless gentle clever tired curious stubborn pale bright crooked heavy
    hollow narrow silver golden rusty dusty broken forgotten distant familiar strange patient hungry lonely
    cheerful solemn nervous careful reckless proud humble shy fierce weary honest sly sudden bitter sweet
    cold warm damp dry rough smooth sharp dull faded painted wooden iron velvet empty crowded secret ancient
    new hidden frozen burning wild tame spotted striped grey crimson amber violet shallow deep silent noisy
    lazy busy thin broad ragged polished plain splendid modest dreary
""")
PEOPLE = words("""
    baker sailor widow miller teacher clockmaker painter fisherman gardener soldier thief judge doctor
    tailor shepherd carpenter librarian postman cook nurse singer beggar farmer blacksmith weaver boy girl
    stranger traveller merchant captain priest hunter musician student cousin aunt uncle grandmother
    grandfather neighbour apprentice mayor locksmith beekeeper ferryman lamplighter piper poet scholar
    juggler watchman dancer glassblower
""")
OBJECTS = words("""
    lantern letter key map coat violin ladder basket mirror candle knife book ring coin bottle rope bell
    clock kettle blanket boat wheel stone feather box hammer umbrella photograph compass drum chair window
    gate bucket needle thread mask flute telescope suitcase notebook pebble shell button spoon cup hat glove
    shawl barrel cart anchor brush pipe saddle thimble wreath parcel ticket chain whistle net
""")
PLACES = words("""
    harbour forest market kitchen tower bridge garden valley village mill station orchard cellar attic river
    lake meadow cave castle library church island road field barn lighthouse desert hill workshop square inn
    theatre school shore mountain swamp cottage bakery courtyard alley stable museum graveyard fairground
    quarry vineyard
""")
PAST_VERBS = words("""
    found carried dropped hid stole mended painted opened closed watched followed lost borrowed sold kept
    buried polished broke wanted remembered forgot admired touched lifted dragged threw caught counted
    returned ignored described noticed wrapped unlocked cleaned guarded sketched traded hung held studied
    weighed burned emptied washed
""")
MOTION = words("""
    walked ran crept wandered hurried rode climbed drifted limped marched stumbled rowed travelled returned
    slipped strolled sailed danced stepped turned fled galloped trudged
""")
ADVERBS = words("""
    slowly quietly suddenly carefully gladly sadly quickly softly proudly bravely calmly eagerly bitterly
    patiently secretly gently boldly wearily politely nervously loudly clumsily firmly lazily solemnly
""")
TIMES = """in the morning|at dawn|before noon|after supper|late at night|on a Sunday|in early spring|in the autumn|
one winter evening|during the storm|when the rain stopped|after the war|at the end of summer|long ago|the next day|
two weeks later|at midnight|on the first day of May|that same afternoon|when nobody was looking|under a full moon|
in the third year|on the eve of the fair|before the snow came|by candlelight|while the others slept""".replace(
    "\n", ""
).split("|")
FEELINGS = words("""
    joy fear relief envy shame hope doubt sorrow pride anger wonder regret longing courage boredom
    tenderness surprise grief delight suspicion gratitude
""")
WEATHER = words("""
    rain wind snow fog thunder sunlight moonlight frost mist dust smoke hail heat darkness starlight
""")
WEATHER_VERBS = words("""
    fell rose faded gathered drifted settled lingered returned crept vanished thickened spread waited
""")
BEASTS = words("""
    fox owl cat dog crow horse mouse wolf goat heron hare badger spider bee moth otter donkey goose hedgehog
    squirrel toad swan mole lynx raven pigeon weasel turtle bear sparrow
""")
SAYINGS = """nothing stays hidden for long|a promise weighs more than gold|every road turns back in the end|
kindness costs little|no one owns the wind|small lights go far|the slow arrive as well|old friends are the best mirrors|
fear makes poor company|what is lost may find us|patience mends most things|the sea keeps its own time|
a gift is not a debt|silence is also an answer|pride builds thin walls|even stones remember|
the truth walks slowly|hunger is a good teacher|nobody is too small to help|tomorrow forgives today""".replace(
    "\n", ""
).split("|")
SPEECH = """I have never seen such a thing|You should go home|There is still time|Nobody will believe us|Give it back|
It was not mine to keep|We must hurry|Let me think about it|The door was open|I heard it too|Do not be afraid|
It is only the wind|Ask me again tomorrow|I knew your father|That is not what I meant|Come with me|
You are late|I would rather wait|Someone has been here|It belongs to the river|Listen|We have walked far enough|
I cannot stay|Tell me the truth|This will not last|You have my word""".replace("\n", "").split("|")
