"""True and false statements about the capitals of countries, as of 2025."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product

from scripts.bundled.table import BundledSet, Row, shuffled

# An even number of countries in each region. Excluded: countries whose capital has the country's
# name, is being moved, is disputed or consists of several cities.
_REGIONS = (
    """France: Paris, Germany: Berlin, Italy: Rome, Spain: Madrid, Portugal: Lisbon,
    Poland: Warsaw, Hungary: Budapest, Austria: Vienna, Greece: Athens, Norway: Oslo,
    Sweden: Stockholm, Finland: Helsinki, Denmark: Copenhagen, Ireland: Dublin, Belgium: Brussels,
    Romania: Bucharest, Bulgaria: Sofia, Croatia: Zagreb, Serbia: Belgrade, Slovenia: Ljubljana,
    Slovakia: Bratislava, Ukraine: Kyiv, Latvia: Riga, Lithuania: Vilnius, Estonia: Tallinn,
    Albania: Tirana, Iceland: Reykjavik, Malta: Valletta, Moldova: Chisinau, Belarus: Minsk""",
    """Japan: Tokyo, China: Beijing, India: New Delhi, Thailand: Bangkok, Vietnam: Hanoi,
    Cambodia: Phnom Penh, Laos: Vientiane, Mongolia: Ulaanbaatar, Nepal: Kathmandu,
    Bhutan: Thimphu, Pakistan: Islamabad, Bangladesh: Dhaka, Afghanistan: Kabul, Iran: Tehran,
    Iraq: Baghdad, Jordan: Amman, Lebanon: Beirut, Syria: Damascus, Qatar: Doha, Bahrain: Manama,
    Oman: Muscat, Turkey: Ankara, Armenia: Yerevan, Azerbaijan: Baku, Uzbekistan: Tashkent,
    Turkmenistan: Ashgabat, Kyrgyzstan: Bishkek, Tajikistan: Dushanbe, Saudi Arabia: Riyadh,
    South Korea: Seoul""",
    """Egypt: Cairo, Morocco: Rabat, Libya: Tripoli, Ethiopia: Addis Ababa, Kenya: Nairobi,
    Uganda: Kampala, Rwanda: Kigali, Zambia: Lusaka, Zimbabwe: Harare, Botswana: Gaborone,
    Namibia: Windhoek, Angola: Luanda, Mozambique: Maputo, Madagascar: Antananarivo,
    Malawi: Lilongwe, Ghana: Accra, Nigeria: Abuja, Senegal: Dakar, Mali: Bamako, Niger: Niamey,
    Chad: N'Djamena, Gabon: Libreville, Liberia: Monrovia, Sierra Leone: Freetown,
    Burkina Faso: Ouagadougou, Mauritania: Nouakchott, Somalia: Mogadishu, Eritrea: Asmara""",
    """Canada: Ottawa, Cuba: Havana, Jamaica: Kingston, Haiti: Port-au-Prince, Nicaragua: Managua,
    Honduras: Tegucigalpa, Colombia: Bogota, Venezuela: Caracas, Ecuador: Quito, Peru: Lima,
    Chile: Santiago, Argentina: Buenos Aires, Uruguay: Montevideo, Paraguay: Asuncion,
    Suriname: Paramaribo, Barbados: Bridgetown, Guyana: Georgetown, Australia: Canberra,
    New Zealand: Wellington, Fiji: Suva, Samoa: Apia, Vanuatu: Port Vila""",
)
_TEMPLATES = (
    "The capital of {country} is {capital}.",
    "{capital} is the capital of {country}.",
    "The capital city of {country} is called {capital}.",
    "The city of {capital} is the capital of {country}.",
)


def capitals() -> BundledSet:
    """Return statements that name a capital of a country, labelled `true` or `false`.

    >>> sorted({row["label"] for row in capitals().rows})
    ['false', 'true']
    """
    return BundledSet(
        name="capitals",
        title="Capitals of countries, true and false",
        task="A statement names a city as the capital of a country: is it `true` or `false`, as of "
        "2025? Read it at the last token.",
        construction="The countries of a region are paired at random. A false statement combines a "
        "country with the capital of its partner, so that in each template each country, and each "
        "capital, occurs equally often in true and in false statements. The pair is the group: "
        "with the country as the group, its capital would also occur in another group, always "
        "with the other label.",
        shortcuts=(
            "No single word predicts the label; country and capital together do.",
            "Templates occur in all groups, equally often with both labels.",
        ),
        columns={
            "text": "the statement",
            "label": "whether it is true",
            "group": "the pair of countries",
            "country": "the country in the statement",
            "capital": "the city in the statement",
        },
        rows=tuple(_rows(random.Random(0))),
    )


def _rows(generator: random.Random) -> Iterator[Row]:
    for region in _REGIONS:
        facts = [tuple(fact.split(": ")) for fact in " ".join(region.split()).split(", ")]
        countries = shuffled(facts, generator)
        for pair in zip(countries[::2], countries[1::2], strict=True):
            yield from _statements(pair)


def _statements(pair: tuple[tuple[str, ...], tuple[str, ...]]) -> Iterator[Row]:
    for template, (country, truth), (_, capital) in product(_TEMPLATES, pair, pair):
        yield {
            "text": template.format(country=country, capital=capital),
            "label": "true" if capital == truth else "false",
            "group": "/".join(name for name, _ in pair),
            "country": country,
            "capital": capital,
        }
