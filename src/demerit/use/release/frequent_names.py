"""Names of people, cities and products that are common enough to be known by themselves, in small letters.

No list of names is whole, and this one is a few hundred of millions: it finds names in small letters and in capitals,
where nothing else tells them from words. Products are kept: a coke is a thing to grasp. What is a word as well as a
name ("rose", "mark") is in `ALSO_WORDS` and is taken for a name only where it has a capital.
"""

from __future__ import annotations

FIRST_NAMES = frozenset(
    """
    aaron abdul abdullah abigail abraham adam adrian adriana agnes ahmad ahmed aisha alan albert alberto alejandra
    alejandro aleksandr alessandra alessandro alessia alex alexander alexandra alexandre alexei alexis alfonso alfred
    alfredo ali alice alicia alina alison allen allison alvaro alyssa amanda amelia amina amir amit amy ana anastasia
    anders anderson andre andrea andreas andrei andres andrew andrey andrzej andy angela angelica angelina angelo anil
    anita ann anna annabelle anne annette annie anthony antoine anton antonia antonio anya aria ariana arjun arnold
    arthur arturo ashley astrid audrey ayumi barbara barry bart bastian beatrice becky ben benedikt benjamin bernard
    bernd bernhard beth betty bianca bianka birgit bjorn bob bobby boris brad bradley brenda brendan brent brian bridget
    bruno bryan caitlin caleb camila camille carl carla carlo carlos carmen carolina caroline carsten catalina caterina
    catherine cecilia celine cesar chang charles charlie charlotte chen cheng chiyo chloe chris christian christina
    christine christoph christophe christopher chun cindy claire clara clarissa claudia claudio claus clemens colin
    connor constantin corinna cornelia cristian cristina curtis cynthia daiki damian damien dan daniel daniela daniele
    danielle danny dario darren dave david deborah denis denise dennis derek detlef diana diane diego dieter dietmar
    dimitri dina dmitry dominic dominik dominique donald donna dora doris dorothy douglas duncan dylan edgar edith
    eduardo edward edwin eileen ekaterina elena eleni elias elisa elisabeth elise eliza elizabeth ella ellen elsa elvira
    emil emilia emilio emily emma emmanuel enrico enrique eric erica erich erik erika erin ernest ernesto esteban esther
    ethan eugene eva evan evelyn fabian fabio fang farah fatima federica federico felicia felipe felix fernanda fernando
    fiona florian francesca francesco francis francisco francois franz fred frederic frederick frederik frida friedrich
    fritz gabriel gabriela gabriele gabriella gareth gary geoffrey george georgia georgios gerald gerard gerd gerhard
    gertrud gilbert gina giorgio giovanna giovanni giulia giuseppe gloria gordon greg gregor gregory greta guillaume
    guillermo gunther gustav gustavo hamza hana hanna hannah hannes hans harald harold harry hassan hector heidi
    heinrich heinz helen helena helene helga helmut hendrik henri henrik henry herbert hermann hideo hiroshi holger
    howard huan hugo hussein ian ibrahim igor ilya imran ines inga ingrid irene irina isaac isabel isabella isabelle
    ismail ivan ivana jackie jackson jacob jacques jaime jake jakob jakub james jamie jan jana jane janet janine jared
    jasmin jason javier jeff jeffrey jenna jennifer jenny jens jeremy jerome jerry jesper jess jesse jessica jesus jian
    jiang jill jim jimmy jin jing joachim joan joanna joao joaquin jochen joe joel joerg johan johanna johannes john
    johnny jon jonas jonathan jordan jorge jose josef joseph josephine josh joshua juan juanita judith julia julian
    juliana julie julien juliette julio jun junjie jurgen justin justine kai kaito kamil karen karin karina karl
    karolina katarina kate katharina katherine kathleen kathrin kathryn katie katja kazuki keith kelly ken kenji kenneth
    kevin khaled kiran klaus konrad konstantin kristen kristin kristina kristof kumar kurt kyle lars laura lauren
    laurent lawrence lea leah lena leo leon leonard leonardo leonie leroy leticia lewis liam liang lili linda linus lisa
    liza lorenzo louis louise luca lucas lucia luciana lucie lucien lucy ludwig luis luisa lukas luke luz lydia
    madeleine maggie mahmoud maite manfred manoj manuel manuela marc marcel marcelo marcin marco marcos marcus margaret
    margarita maria mariam mariana marie marina mario marion marius markus marlene marta martha martin martina mateo
    mathias mathieu mathilde matilda matt matteo matthew matthias maurice mauricio maximilian megan mehmet mei melanie
    melissa mia micah michael michaela michal michel michelle miguel mika mike mikhail milan milena milos mimi mina ming
    minh miriam mitchell mohamed mohammad mohammed moises molly monica monika monique moritz muhammad murat nadia nadine
    nancy naomi natalia natalie natasha nathalie nathan neha neil nelson nicholas nicola nicolas nicole niels nikita
    niklas nikolai nikos nils nina noah noel nora norbert norman odette olaf oleg olga oliver olivia olivier omar oscar
    oskar otto pablo paloma pamela paolo pascal patricia patricio patrick patrik paul paula paulo pavel pedro peng pete
    peter petra petros phil philip philipp philippe phillip pierre pieter pilar piotr pooja pradeep priya qiang rachel
    rachid rafael rahul rainer raj rajesh ralf ralph ramon ramona raphael raquel raul ravi raymond rebecca regina
    reinhard renata renate rene ricardo riccardo richard rick rita robert roberta roberto rodrigo roger roland rolf
    romain roman ronald rosa rosalie rosemarie roxana ruben rudolf rui russell ruth ryan sabine sabrina salma salvatore
    sam samantha samir samuel sandra sanjay santiago sara sarah sascha satoshi scott sean sebastian serena serge sergei
    sergey sergio seth shannon sharon shaun shreya silke silvia simon simona simone sofia sonia sonja sophia sophie
    stanislav stefan stefania stefanie stefano stella stephan stephanie stephen steve steven stuart sunil susan susanna
    susanne sven sylvia sylvie takashi takeshi tamara tania tanja tanya tatiana ted teresa terry tessa theodore theresa
    thomas thorsten tim timo timothy tina tobi todd tom tomas tomasz tommy tony torsten tracy trevor ulrich ursula uwe
    valentin valentina valeria valerie vanessa vera veronica veronika victoria vijay viktor vincent vincenzo virginia
    vivian vladimir walter wei wendy werner wilhelm william xavier xiao xiaoming xin yan yang yann yannick yara ying
    yoko yolanda yong yosef youssef yuki yumi yuri yusuke yvonne zach zachary zahra zara zheng zoe
    """.split()
)
SURNAMES = frozenset(
    """
    adams alvarez bailey beck bennett brien brooks browne buchanan burke campbell castillo clarke clarkson collins
    connolly cruz davis diaz edwards ellis evans fernandez fischer fitzgerald gomez gonzalez graham hamilton hansen
    harris harrison hernandez hopkins hughes hussain jefferson jenkins jensen johansson johnson jones keller kennedy
    khan kimball liu lombard lopez maclean martinez matthews mcgraw meyer mitchell moore morales morgan morris mueller
    murphy murray nunez obama parker perez perkins peterson phillips ramirez reyes reynolds rivera roberts robertson
    robinson rodgers rodriguez rogers sanchez schmidt schulz simmons singh smith stewart suarez sullivan thompson torres
    wagner wallace wang watson weber wilcox williams willis wilson winslow wright zhao
    """.split()
)
"""surnames that an English vocabulary holds: it must not take them for words"""
ALSO_WORDS = frozenset(
    """
    allen alma amber angel april archer art ash aspen august autumn barb basil bill blanche bob booker brad brandy brook
    buck bud buddy candy carol carter case cash chance chase cherry chip christian chuck clay cliff cole colt cook
    cooper coral crystal daisy dale dan dash dawn dean destiny dick dolly don dot drake drew duke dusty earl faith
    felicity fern fisher flora forest fox frank gene georgia gill ginger glen grace grant guy harmony harper haven hazel
    heath heather hero holly honey hope hunter iris ivory ivy jack jade jasmine jasper jay jean jerry jewel jimmy jordan
    joy june junior king kit kitty lance lane laurel lee lily lotus lou love luna major maple marina mark mars mason
    matt max may maya melody mercedes mercy merry mike miles miller min misty mo nat nick noble noel norm olive opal
    page paige parker pat patience pearl peg penny pepper perry pierce piper poppy porter precious prince rain raven ray
    red reed rich ridge river rob robin rock rocky rod roman rose rosemary rowan roy ruby rusty sage saint sally sandy
    skip sky sol spencer stan star stella sterling stone storm sue summer sunny tan taylor terry thorn tiger trinity
    troy tucker ty van vic victor viola violet wade ward will willow wolf woody wren
    """.split()
)
CITIES = frozenset(
    """
    aachen amsterdam ankara antwerp athens atlanta auckland austin baltimore bangalore bangkok barcelona basel beijing
    belfast belgrade berkeley berlin bern birmingham boston bratislava bremen brisbane bristol brooklyn bucharest
    budapest cairo calgary cambridge chengdu chennai chicago cincinnati cleveland copenhagen dallas darmstadt delft
    delhi denver detroit dortmund dresden dublin dusseldorf edinburgh eindhoven espoo florence frankfurt geneva ghent
    glasgow gothenburg guangzhou hamburg hangzhou hanoi hanover heidelberg helsinki houston hyderabad innsbruck istanbul
    jakarta jerusalem karlsruhe kiev kolkata konstanz krakow kyiv kyoto lausanne leeds leiden leipzig linz lisbon
    liverpool ljubljana london lyon madrid manchester manhattan marseille melbourne miami milan minneapolis montreal
    moscow mumbai munich nairobi nanjing naples nashville newcastle nottingham nuremberg osaka oslo ottawa padua palo
    pasadena pisa pittsburgh porto potsdam prague princeton riga rotterdam sacramento salzburg santiago seattle seoul
    sevilla shanghai sheffield shenzhen singapore sofia stanford stockholm stuttgart sydney taipei tallinn tehran
    thessaloniki tianjin tokyo toronto toulouse trondheim tsukuba tubingen turin utrecht vancouver vilnius warsaw
    wroclaw wuhan yokohama zagreb zurich
    """.split()
)
BRANDS = frozenset(
    """
    adidas aloha android apple arduino bluetooth bridge campbells cheerios cheezit chex clorox coca coke cola colgate
    cornflakes cricut duplo duracell energizer expo fanta franka ftdi github google gopro hershey huggingface husky ikea
    intel ipad iphone jell jello jenga jetson kinect kinova kit kitkat kleenex kuka lego legos libero linux lipton
    listerine logitech lysol macbook matlab metaworld microsoft mujoco nerf nescafe nike nintendo nvidia oculus orbbec
    oreo oreos panda pepsi playdoh playmobil playstation post-it pringles python pytorch raspberry realsense robotiq
    rubik rubiks samsung scotch sharpie skittles smarties snickers solo sony spacemouse spam sprite starbucks swiffer
    tabasco tupperware twix ubuntu vaseline velcro vive windex windows xbox xela ycb yogi zed ziploc
    """.split()
) - {"bridge", "kit", "solo", "expo", "post-it"}
"""products, robots and programs that stand in scenes and notes with a capital"""
PRODUCTS = (
    *("dr pepper", "mr potato head", "mrs potato head", "mr potato", "mr clean", "mr coffee", "mr muscle", "mr bubble"),
    *("mr sketch", "mr kipling", "mrs meyers", "mrs meyer's", "mrs butterworth's", "mrs fields", "tim hortons"),
    *("uncle ben's", "aunt jemima", "ben and jerry's", "ben & jerry's", "trader joe's", "papa john's", "jimmy john's"),
    *(
        "marie callender's",
        "sara lee",
        "jimmy dean",
        "oscar mayer",
        "tony chachere's",
        "tony chachere",
        "chef boyardee",
    ),
    *(
        "jack daniels",
        "jack daniel's",
        "johnnie walker",
        "jim beam",
        "captain morgan",
        "betty crocker",
        "little debbie",
    ),
    *("russell hobbs", "calvin klein", "tommy hilfiger", "ralph lauren", "christian dior", "paul mitchell", "levi's"),
    *("harry potter", "charlie brown", "victoria sponge", "bobby pin", "bobby pins", "scott towel", "scott towels"),
    *(
        "scott paper",
        "allen key",
        "allen keys",
        "allen wrench",
        "phillips head",
        "phillips screwdriver",
        "roman numeral",
    ),
    *("stanley knife", "stanley cup", "stanley tumbler", "stanley tape", "thomas the tank engine", "thomas train"),
    *("alexa speaker", "simon game", "bob the builder", "curious george", "peter rabbit"),
)
"""products, toys and tools of several words that hold a title or a name"""
SHOPS = ("annie", "wendy", "amy", "denny", "arby", "newman", "reese", "levi")
"""whose possessive is a brand behind an article: the Wendy's cup"""
