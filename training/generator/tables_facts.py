"""Tables of facts that are public knowledge."""

from __future__ import annotations

from training.generator.text import words


def _pairs(text: str) -> dict[str, str]:
    return dict(line.split("=") for line in text.replace("\n", ";").split(";") if "=" in line)


CAPITALS = _pairs("""France=Paris;Japan=Tokyo;Germany=Berlin;Italy=Rome;Spain=Madrid;Portugal=Lisbon;Norway=Oslo
Sweden=Stockholm;Finland=Helsinki;Denmark=Copenhagen;Iceland=Reykjavik;Ireland=Dublin;Greece=Athens;Turkey=Ankara
Poland=Warsaw;Austria=Vienna;Hungary=Budapest;Belgium=Brussels;the Netherlands=Amsterdam;Switzerland=Bern
Russia=Moscow;Ukraine=Kyiv;Romania=Bucharest;Bulgaria=Sofia;Serbia=Belgrade;Croatia=Zagreb;Slovenia=Ljubljana
Slovakia=Bratislava;Czechia=Prague;Estonia=Tallinn;Latvia=Riga;Lithuania=Vilnius;Belarus=Minsk;Albania=Tirana
the United Kingdom=London;Malta=Valletta;Cyprus=Nicosia;Luxembourg=Luxembourg;Monaco=Monaco;Georgia=Tbilisi
Armenia=Yerevan;Azerbaijan=Baku;Egypt=Cairo;Morocco=Rabat;Algeria=Algiers;Tunisia=Tunis;Libya=Tripoli
Sudan=Khartoum;Ethiopia=Addis Ababa;Kenya=Nairobi;Uganda=Kampala;Rwanda=Kigali;Ghana=Accra;Nigeria=Abuja
Senegal=Dakar;Mali=Bamako;Angola=Luanda;Zambia=Lusaka;Zimbabwe=Harare;Namibia=Windhoek;Botswana=Gaborone
Mozambique=Maputo;Madagascar=Antananarivo;Somalia=Mogadishu;South Africa=Pretoria;Cameroon=Yaounde
China=Beijing;India=New Delhi;Pakistan=Islamabad;Bangladesh=Dhaka;Nepal=Kathmandu;Bhutan=Thimphu;Thailand=Bangkok
Vietnam=Hanoi;Laos=Vientiane;Cambodia=Phnom Penh;Malaysia=Kuala Lumpur;Indonesia=Jakarta;the Philippines=Manila
Singapore=Singapore;South Korea=Seoul;North Korea=Pyongyang;Mongolia=Ulaanbaatar;Kazakhstan=Astana
Uzbekistan=Tashkent;Afghanistan=Kabul;Iran=Tehran;Iraq=Baghdad;Syria=Damascus;Lebanon=Beirut;Jordan=Amman
Israel=Jerusalem;Saudi Arabia=Riyadh;Yemen=Sanaa;Oman=Muscat;Qatar=Doha;Kuwait=Kuwait City;Bahrain=Manama
Canada=Ottawa;the United States=Washington, D.C.;Mexico=Mexico City;Guatemala=Guatemala City;Honduras=Tegucigalpa
Nicaragua=Managua;Costa Rica=San Jose;Panama=Panama City;Cuba=Havana;Jamaica=Kingston;Haiti=Port-au-Prince
Brazil=Brasilia;Argentina=Buenos Aires;Chile=Santiago;Peru=Lima;Ecuador=Quito;Colombia=Bogota;Venezuela=Caracas
Bolivia=Sucre;Paraguay=Asuncion;Uruguay=Montevideo;Guyana=Georgetown;Australia=Canberra;New Zealand=Wellington
Fiji=Suva;Samoa=Apia;Tonga=Nuku'alofa""")

LANGUAGES = _pairs("""France=French;Germany=German;Spain=Spanish;Italy=Italian;Portugal=Portuguese;Japan=Japanese
Brazil=Portuguese;Mexico=Spanish;Argentina=Spanish;Russia=Russian;China=Chinese;Egypt=Arabic;Greece=Greek
Turkey=Turkish;Poland=Polish;Sweden=Swedish;Norway=Norwegian;Finland=Finnish;Denmark=Danish;Hungary=Hungarian
Austria=German;Iran=Persian;Thailand=Thai;Vietnam=Vietnamese;Iceland=Icelandic;Australia=English;Peru=Spanish""")

OPPOSITES = _pairs("""hot=cold;big=small;fast=slow;happy=sad;light=dark;early=late;open=closed;full=empty;hard=soft
high=low;long=short;near=far;new=old;rich=poor;strong=weak;wet=dry;young=old;clean=dirty;loud=quiet;deep=shallow
wide=narrow;thick=thin;heavy=light;sharp=blunt;true=false;up=down;left=right;in=out;day=night;win=lose;buy=sell
begin=end;push=pull;give=take;love=hate;remember=forget;ask=answer;arrive=leave;rise=fall;laugh=cry;always=never
first=last;before=after;above=below;inside=outside;easy=difficult;cheap=expensive;safe=dangerous;brave=afraid
polite=rude;smooth=rough;sweet=sour;tall=short;tight=loose;warm=cool;wild=tame;wise=foolish;awake=asleep
alive=dead;bright=dim;calm=nervous;kind=cruel;lazy=hard-working;simple=complex;public=private;ancient=modern""")

PLURALS = _pairs("""child=children;mouse=mice;foot=feet;tooth=teeth;goose=geese;man=men;woman=women;person=people
ox=oxen;leaf=leaves;knife=knives;wolf=wolves;life=lives;wife=wives;half=halves;shelf=shelves;city=cities
baby=babies;story=stories;berry=berries;party=parties;box=boxes;fox=foxes;bus=buses;dish=dishes;watch=watches
church=churches;glass=glasses;potato=potatoes;tomato=tomatoes;hero=heroes;cat=cats;dog=dogs;tree=trees;book=books
car=cars;house=houses;bird=birds;river=rivers;table=tables;sheep=sheep;fish=fish;deer=deer;key=keys;toy=toys
day=days;monkey=monkeys;cherry=cherries;country=countries;family=families;bench=benches;brush=brushes""")

PAST = _pairs("""go=went;eat=ate;see=saw;run=ran;take=took;give=gave;make=made;come=came;find=found;think=thought
buy=bought;bring=brought;teach=taught;catch=caught;write=wrote;drive=drove;speak=spoke;break=broke;choose=chose
know=knew;grow=grew;fly=flew;draw=drew;sing=sang;swim=swam;drink=drank;begin=began;sit=sat;win=won;build=built
send=sent;spend=spent;sleep=slept;keep=kept;feel=felt;leave=left;lose=lost;hear=heard;say=said;tell=told
sell=sold;hold=held;stand=stood;walk=walked;play=played;stop=stopped;try=tried;cry=cried;love=loved;jump=jumped""")

YOUNG = _pairs("""dog=puppy;cat=kitten;cow=calf;horse=foal;sheep=lamb;goat=kid;pig=piglet;hen=chick;duck=duckling
lion=cub;bear=cub;deer=fawn;frog=tadpole;goose=gosling;kangaroo=joey;swan=cygnet;owl=owlet;eagle=eaglet""")

SOUNDS = _pairs("""dog=barks;cat=meows;cow=moos;sheep=bleats;duck=quacks;lion=roars;horse=neighs;pig=oinks;bee=buzzes
snake=hisses;owl=hoots;wolf=howls;frog=croaks;mouse=squeaks;rooster=crows;bird=sings;donkey=brays;crow=caws""")

COLOURS_OF = _pairs("""a banana=yellow;the sky=blue;grass=green;snow=white;coal=black;a tomato=red;a lemon=yellow
an orange=orange;a carrot=orange;blood=red;milk=white;a cherry=red;an emerald=green;a ruby=red;chocolate=brown
a polar bear=white;a flamingo=pink;a crow=black;the sun=yellow;a strawberry=red;broccoli=green;a plum=purple
an elephant=grey;a sunflower=yellow;a frog=green;cotton=white;a sapphire=blue;rust=orange;ink=black;a pumpkin=orange""")

LEGS = {"a dog": 4, "a cat": 4, "a spider": 8, "an ant": 6, "a bee": 6, "a hen": 2, "a horse": 4, "a snake": 0,
        "a duck": 2, "an owl": 2, "a beetle": 6, "a cow": 4, "a fish": 0, "a frog": 4, "an eagle": 2, "a fly": 6,
        "a person": 2, "a crab": 10, "a lion": 4, "a butterfly": 6}  # fmt: skip

SYMBOLS = _pairs("""hydrogen=H;oxygen=O;carbon=C;nitrogen=N;gold=Au;silver=Ag;iron=Fe;copper=Cu;helium=He;sodium=Na
calcium=Ca;potassium=K;lead=Pb;tin=Sn;zinc=Zn;mercury=Hg;neon=Ne;sulfur=S;chlorine=Cl;magnesium=Mg;aluminium=Al""")

WORKERS = _pairs("""a baker=bread;a pilot=planes;a painter=paintings;a shoemaker=shoes;a tailor=clothes
a carpenter=furniture;a novelist=books;a composer=music;a farmer=food;a programmer=software;a potter=pots
a brewer=beer;a jeweller=rings;a blacksmith=horseshoes;a chef=meals;a poet=poems;a photographer=photographs""")

DAYS = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = words("""
    January February March April May June July August September October November December
""")  # fmt: skip
MONTH_DAYS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
NUMBERS = words("""
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen
    seventeen eighteen nineteen twenty
""")  # fmt: skip

# Questions that stand alone: question, answer, and the short answer a checker looks for.
SINGLE: list[tuple[str, str, str]] = [
    ("How many days are there in a week?", "There are seven days in a week.", "seven"),
    ("How many months are there in a year?", "There are twelve months in a year.", "twelve"),
    ("How many hours are there in a day?", "There are 24 hours in a day.", "24"),
    ("How many minutes are there in an hour?", "There are 60 minutes in an hour.", "60"),
    ("How many seconds are there in a minute?", "There are 60 seconds in a minute.", "60"),
    ("How many days are there in a leap year?", "There are 366 days in a leap year.", "366"),
    ("How many days are there in a year?", "There are 365 days in a year.", "365"),
    ("How many sides does a triangle have?", "A triangle has three sides.", "three"),
    ("How many sides does a square have?", "A square has four sides.", "four"),
    ("How many sides does a hexagon have?", "A hexagon has six sides.", "six"),
    ("How many sides does a pentagon have?", "A pentagon has five sides.", "five"),
    ("How many sides does an octagon have?", "An octagon has eight sides.", "eight"),
    ("How many planets are there in the solar system?", "There are eight planets in the solar system.", "eight"),
    ("What is the largest planet?", "The largest planet is Jupiter.", "Jupiter"),
    ("What is the smallest planet?", "The smallest planet is Mercury.", "Mercury"),
    ("Which planet is closest to the sun?", "The planet closest to the sun is Mercury.", "Mercury"),
    ("Which planet is known as the red planet?", "The red planet is Mars.", "Mars"),
    ("Which planet has large rings?", "The planet with large rings is Saturn.", "Saturn"),
    ("What do we call frozen water?", "Frozen water is called ice.", "ice"),
    ("What gas do plants take in?", "Plants take in carbon dioxide.", "carbon dioxide"),
    ("What gas do people need to breathe?", "People need oxygen to breathe.", "oxygen"),
    ("What is water made of?", "Water is made of hydrogen and oxygen.", "hydrogen"),
    ("At what temperature does water boil?", "Water boils at 100 degrees Celsius.", "100"),
    ("At what temperature does water freeze?", "Water freezes at 0 degrees Celsius.", "0"),
    ("What is the tallest mountain on Earth?", "The tallest mountain on Earth is Mount Everest.", "Everest"),
    ("What is the largest ocean?", "The largest ocean is the Pacific Ocean.", "Pacific"),
    ("What is the longest river in Africa?", "The longest river in Africa is the Nile.", "Nile"),
    ("What is the largest continent?", "The largest continent is Asia.", "Asia"),
    ("What is the smallest continent?", "The smallest continent is Australia.", "Australia"),
    ("How many continents are there?", "There are seven continents.", "seven"),
    ("What is the largest animal?", "The largest animal is the blue whale.", "blue whale"),
    ("What is the fastest land animal?", "The fastest land animal is the cheetah.", "cheetah"),
    ("What is the tallest animal?", "The tallest animal is the giraffe.", "giraffe"),
    ("What do bees make?", "Bees make honey.", "honey"),
    ("What do caterpillars turn into?", "Caterpillars turn into butterflies.", "butterflies"),
    ("What do cows give us?", "Cows give us milk.", "milk"),
    ("Who wrote Romeo and Juliet?", "Romeo and Juliet was written by William Shakespeare.", "Shakespeare"),
    ("Who painted the Mona Lisa?", "The Mona Lisa was painted by Leonardo da Vinci.", "Leonardo"),
    ("Who developed the theory of relativity?", "The theory of relativity was developed by Albert Einstein.",
     "Einstein"),
    ("What colour do you get when you mix blue and yellow?", "Mixing blue and yellow gives green.", "green"),
    ("What colour do you get when you mix red and yellow?", "Mixing red and yellow gives orange.", "orange"),
    ("What colour do you get when you mix red and blue?", "Mixing red and blue gives purple.", "purple"),
    ("What colour do you get when you mix red and white?", "Mixing red and white gives pink.", "pink"),
    ("What colour do you get when you mix black and white?", "Mixing black and white gives grey.", "grey"),
    ("How many letters are there in the English alphabet?", "There are 26 letters in the English alphabet.", "26"),
    ("What is the first letter of the alphabet?", "The first letter of the alphabet is A.", "A"),
    ("What is the last letter of the alphabet?", "The last letter of the alphabet is Z.", "Z"),
    ("What force pulls things toward the ground?", "Gravity pulls things toward the ground.", "Gravity"),
    ("What is the star at the centre of the solar system?", "The star at the centre of the solar system is the Sun.",
     "Sun"),
    ("What organ pumps blood?", "The heart pumps blood.", "heart"),
    ("What organ do we think with?", "We think with the brain.", "brain"),
    ("Which season comes after winter?", "Spring comes after winter.", "Spring"),
    ("Which season comes after summer?", "Autumn comes after summer.", "Autumn"),
    ("In which direction does the sun rise?", "The sun rises in the east.", "east"),
    ("In which direction does the sun set?", "The sun sets in the west.", "west"),
    ("How many strings does a violin have?", "A violin has four strings.", "four"),
    ("How many keys does a piano have?", "A piano has 88 keys.", "88"),
    ("How many players are there in a football team?", "There are eleven players in a football team.", "eleven"),
    ("What is a group of wolves called?", "A group of wolves is called a pack.", "pack"),
    ("What is a group of fish called?", "A group of fish is called a school.", "school"),
    ("What is a group of sheep called?", "A group of sheep is called a flock.", "flock"),
    ("What does HTTP stand for?", "HTTP stands for Hypertext Transfer Protocol.", "Hypertext Transfer Protocol"),
    ("What does CPU stand for?", "CPU stands for central processing unit.", "central processing unit"),
    ("What does RAM stand for?", "RAM stands for random access memory.", "random access memory"),
    ("What does SQL stand for?", "SQL stands for Structured Query Language.", "Structured Query Language"),
    ("What does JSON stand for?", "JSON stands for JavaScript Object Notation.", "JavaScript Object Notation"),
    ("Which keyword defines a function in Python?", "In Python, the keyword def defines a function.", "def"),
    ("Which keyword defines a class in Python?", "In Python, the keyword class defines a class.", "class"),
    ("How many bits are there in a byte?", "There are 8 bits in a byte.", "8"),
    ("How many bytes are there in a kibibyte?", "There are 1024 bytes in a kibibyte.", "1024"),
    ("Who are you?", "I am nano, a very small language model.", "nano"),
    ("What is your name?", "My name is nano.", "nano"),
    ("What can you do?",
     "I can answer simple questions, add small numbers, write short Python functions and call tools.",
     "simple questions"),
    ("Are you a person?", "No, I am nano, a very small language model.", "No"),
]  # fmt: skip
