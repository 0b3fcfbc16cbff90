//! The names that `\p{…}` takes in Go's patterns: general categories, their long names, and scripts.
//! As in Go 1.25, case, spaces, `_` and `-` in them do not matter.
//! Upstream counterpart: unicode.Categories, unicode.CategoryAliases and unicode.Scripts, of Unicode 15.

/// The general categories, each with its long names.
const CATEGORIES: &[(&str, &[&str])] = &[
    ("C", &["other"]),
    ("Cc", &["control", "cntrl"]),
    ("Cf", &["format"]),
    ("Cn", &["unassigned"]),
    ("Co", &["privateuse"]),
    ("Cs", &["surrogate"]),
    ("L", &["letter"]),
    ("LC", &["casedletter"]),
    ("Ll", &["lowercaseletter"]),
    ("Lm", &["modifierletter"]),
    ("Lo", &["otherletter"]),
    ("Lt", &["titlecaseletter"]),
    ("Lu", &["uppercaseletter"]),
    ("M", &["mark", "combiningmark"]),
    ("Mc", &["spacingmark"]),
    ("Me", &["enclosingmark"]),
    ("Mn", &["nonspacingmark"]),
    ("N", &["number"]),
    ("Nd", &["decimalnumber", "digit"]),
    ("Nl", &["letternumber"]),
    ("No", &["othernumber"]),
    ("P", &["punctuation", "punct"]),
    ("Pc", &["connectorpunctuation"]),
    ("Pd", &["dashpunctuation"]),
    ("Pe", &["closepunctuation"]),
    ("Pf", &["finalpunctuation"]),
    ("Pi", &["initialpunctuation"]),
    ("Po", &["otherpunctuation"]),
    ("Ps", &["openpunctuation"]),
    ("S", &["symbol"]),
    ("Sc", &["currencysymbol"]),
    ("Sk", &["modifiersymbol"]),
    ("Sm", &["mathsymbol"]),
    ("So", &["othersymbol"]),
    ("Z", &["separator"]),
    ("Zl", &["lineseparator"]),
    ("Zp", &["paragraphseparator"]),
    ("Zs", &["spaceseparator"]),
];

/// The scripts, without the marks in their names.
const SCRIPTS: &str = "\
    adlam ahom anatolianhieroglyphs arabic armenian avestan balinese bamum bassavah batak bengali bhaiksuki bopomofo \
    brahmi braille buginese buhid canadianaboriginal carian caucasianalbanian chakma cham cherokee chorasmian common \
    coptic cuneiform cypriot cyprominoan cyrillic deseret devanagari divesakuru dogra duployan egyptianhieroglyphs \
    elbasan elymaic ethiopic georgian glagolitic gothic grantha greek gujarati gunjalagondi gurmukhi han hangul \
    hanifirohingya hanunoo hatran hebrew hiragana imperialaramaic inherited inscriptionalpahlavi \
    inscriptionalparthian javanese kaithi kannada katakana kawi kayahli kharoshthi khitansmallscript khmer khojki \
    khudawadi lao latin lepcha limbu lineara linearb lisu lycian lydian mahajani makasar malayalam mandaic manichaean \
    marchen masaramgondi medefaidrin meeteimayek mendekikakui meroiticcursive meroitichieroglyphs miao modi mongolian \
    mro multani myanmar nabataean nagmundari nandinagari newtailue newa nko nushu nyiakengpuachuehmong ogham olchiki \
    oldhungarian olditalic oldnortharabian oldpermic oldpersian oldsogdian oldsoutharabian oldturkic olduyghur oriya \
    osage osmanya pahawhhmong palmyrene paucinhau phagspa phoenician psalterpahlavi rejang runic samaritan saurashtra \
    sharada shavian siddham signwriting sinhala sogdian sorasompeng soyombo sundanese sylotinagri syriac tagalog \
    tagbanwa taile taitham taiviet takri tamil tangsa tangut telugu thaana thai tibetan tifinagh tirhuta toto \
    ugaritic vai vithkuqi wancho warangciti yezidi yi zanabazarsquare";

/// Everything, and nothing.
const ALL: [&str; 2] = ["[\\x00-\\x{10FFFF}]", "[^\\x00-\\x{10FFFF}]"];

/// The longest name has 22 letters; with its marks a name is never longer than this.
const NAME_MAX: usize = 64;

/// The property in Rust's dialect, usable inside and outside of classes.
pub(crate) fn property(name: &str, negated: bool) -> Option<String> {
    if name.len() > NAME_MAX {
        return None;
    }
    let plain = name.replace(['_', '-', ' '], "").to_ascii_lowercase();
    let sign = |negated: bool| if negated { 'P' } else { 'p' };
    match plain.as_str() {
        "any" => return Some(ALL[usize::from(negated)].to_owned()),
        // Texts have no surrogates.
        "cs" | "surrogate" => return Some(ALL[usize::from(!negated)].to_owned()),
        "ascii" => return Some(if negated { "[^\\x00-\\x7F]" } else { "[\\x00-\\x7F]" }.to_owned()),
        "assigned" => return Some(format!("\\{}{{gc=Cn}}", sign(!negated))),
        _ => {}
    }
    let category =
        CATEGORIES.iter().find(|(short, long)| short.eq_ignore_ascii_case(&plain) || long.contains(&&*plain));
    if let Some((short, _)) = category {
        return Some(format!("\\{}{{gc={short}}}", sign(negated)));
    }
    let script = SCRIPTS.split_ascii_whitespace().find(|script| *script == plain)?;
    Some(format!("\\{}{{sc={script}}}", sign(negated)))
}
