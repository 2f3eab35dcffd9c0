package policy

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headway-go/headway/internal/duration"
	"github.com/headway-go/headway/throttle/upstream"
	"github.com/headway-go/headway/throttle/upstream/dialect"
)

// Answers is how answers of an API affect its scope; see Limiter.Report.
type Answers string

// The effects that answers can have.
const (
	AnswersHeed     Answers = "heed"     // pauses, and corrections of rules
	AnswersRefusals Answers = "refusals" // the same by refusals alone: what other answers say of quotas has no effect
	AnswersPause    Answers = "pause"    // pauses alone
	AnswersIgnore   Answers = "ignore"   // nothing
)

// Correct reports whether answers correct rules.
func (a Answers) Correct() bool { return a == AnswersHeed || a == AnswersRefusals }

// Reading is how an API's answers are read at a level and below it, beyond what upstream.Read makes of them.
type Reading struct {
	// Dialect is the name of the vendor whose answers they are, as package dialect has it. Defaults to none.
	Dialect string
	// ResetUnit is the unit of resets that the API gives as plain numbers: "s" or "ms". By default they are seconds, unless only
	// milliseconds fit a rule; see Limiter.Report.
	ResetUnit string
	// Also are further answers that mean something, at most 50. They take precedence over the dialect's.
	Also []upstream.Case
	// Reasons says which scope waits for a limit that answers name, as upstream.Case.Scope does, at most 100. It takes precedence
	// over the dialect's. Case does not matter. A name that is in neither is that of a rule (Rule.Vendor), or nothing is known.
	Reasons map[string]string
}

// Corrects bounds how far an API's answers correct the rules of a level, in whole percent. A field of 0 has its default.
type Corrects struct {
	// Cut is the part of its present value by which a refusal reduces a limit: 1 to 90. Defaults to 15.
	Cut int64
	// Grow is the part of the configured limit by which a limit grows in each of the rule's windows, which count as a second at
	// least: 1 to 100. Defaults to 2.
	Grow int64
	// Least is the part of the configured limit below which no refusal reduces it: 1 to 100. Defaults to 10.
	Least int64
	// Most is the part of the configured limit up to which a limit grows while calls are not refused, or while the API's own is
	// larger: 100 to 1000. Defaults to 100, which raises nothing.
	Most int64
}

// Refusals is how an API's refusals are treated at a level and below it.
type Refusals struct {
	// Pause is the first pause after a refusal that names no time to come back: 100ms to 5m. Defaults to a second.
	Pause time.Duration
	// Count says that a refused call counts against calendars and windows longer than an hour, as any other call does. Defaults
	// to false: its units come back.
	Count bool
}

const (
	defaultPause             = time.Second
	leastPause, longestPause = 100 * time.Millisecond, 5 * time.Minute
)

// WithDefaults returns r with every default written out.
func (r Refusals) WithDefaults() Refusals {
	r.Pause = cmp.Or(r.Pause, defaultPause)
	return r
}

// bare returns r without the fields that have their defaults.
func (r Refusals) bare() Refusals {
	if r.Pause == defaultPause {
		r.Pause = 0
	}
	return r
}

// defaultCorrects are the values of fields that are not set.
var defaultCorrects = Corrects{Cut: 15, Grow: 2, Least: 10, Most: 100}

// percent describes a field of Corrects and its bounds.
type percent struct {
	name        string
	least, most int64
	of          func(*Corrects) *int64
}

var correctsFields = []percent{
	{"cut", 1, 90, func(c *Corrects) *int64 { return &c.Cut }},
	{"grow", 1, 100, func(c *Corrects) *int64 { return &c.Grow }},
	{"least", 1, 100, func(c *Corrects) *int64 { return &c.Least }},
	{"most", 100, 1000, func(c *Corrects) *int64 { return &c.Most }},
}

// WithDefaults returns c with every default written out.
func (c Corrects) WithDefaults() Corrects {
	for _, f := range correctsFields {
		if at := f.of(&c); *at == 0 {
			*at = *f.of(&defaultCorrects)
		}
	}
	return c
}

// bare returns c without the fields that have their defaults.
func (c Corrects) bare() Corrects {
	for _, f := range correctsFields {
		if at := f.of(&c); *at == *f.of(&defaultCorrects) {
			*at = 0
		}
	}
	return c
}

// Raises reports whether a limit may grow above the configured one.
func (c Corrects) Raises() bool { return c.Most > defaultCorrects.Most }

// resetUnits are the units that plain numbers of resets can have, by their words.
var resetUnits = map[string]time.Duration{"s": time.Second, "ms": time.Millisecond}

// ignored is what is wrong with fields of answers that are ignored.
const ignored = "says what follows from an answer, and with ignore nothing does; remove it, or write pause"

// answers checks the answers of a level, which may be written as a word or as fields. It leaves them without defaults.
func (c *checker) answers(t *tree, scope *Source, path string) {
	from := scope.under("answers")
	if scope != nil && from == nil {
		return
	}
	mode, modes := from.field("mode", string(t.Answers), t.Answers != ""), "answers.mode"
	if from == nil || from.Fields == nil { // a word, which may be a dialect's
		modes = "answers"
		if from != nil {
			mode = scope.field("answers", string(t.Answers), true)
		}
	}
	c.word(mode, path, modes)
	if _, is := dialect.Named(string(t.Answers)); is && modes == "answers" {
		t.Answers, t.Reading.Dialect = AnswersHeed, string(t.Answers)
	}
	given := false
	read := func(name, text string, set bool) written {
		w := from.field(name, text, set)
		given = given || w.set
		return w
	}
	refuse := func(w written, name, format string, args ...any) {
		if w.good() {
			c.add(w.at, path+"."+name, name+" "+format, args...)
		}
	}
	for _, f := range correctsFields {
		n := *f.of(&t.Corrects)
		w := read(f.name, strconv.FormatInt(n, 10)+"%", n != 0)
		switch {
		case n < f.least || n > f.most:
			refuse(w, f.name, "is %s; it must be %d%% to %d%%", w.text, f.least, f.most)
		case mode.good() && (t.Answers == AnswersPause || t.Answers == AnswersIgnore):
			refuse(w, f.name, "says how rules are corrected, and with %s none is; remove it, or write heed", t.Answers)
		}
	}
	pause := read("pause", duration.Format(t.Refusals.Pause), t.Refusals.Pause != 0)
	switch p := t.Refusals.Pause; {
	case p < leastPause:
		refuse(pause, "pause", "is %s; the least is %s", pause.text, duration.Format(leastPause))
	case p > longestPause:
		refuse(pause, "pause", "is %s; the most is %s", pause.text, duration.Format(longestPause))
	}
	counts, r := t.Refusals.Count, t.Reading
	for _, f := range []struct {
		name, text string
		set        bool
	}{
		{"counts", "true", counts}, {"unit", r.ResetUnit, r.ResetUnit != ""}, {"dialect", r.Dialect, r.Dialect != ""},
		{"also", "", len(r.Also) > 0}, {"reasons", "", len(r.Reasons) > 0},
	} {
		w := read(f.name, f.text, f.set)
		if words["answers."+f.name] != nil {
			c.word(w, path+"."+f.name, "answers."+f.name)
		}
		if mode.good() && t.Answers == AnswersIgnore {
			refuse(w, f.name, ignored)
		}
	}
	if mode.good() && t.Answers == AnswersIgnore {
		refuse(pause, "pause", ignored)
	}
	if !mode.set && given {
		t.Answers = AnswersHeed
	}
	t.Corrects, t.Refusals = t.Corrects.bare(), t.Refusals.bare()
	c.reading(t, from, path)
	c.raises = c.raises || t.Corrects.Raises()
}

// answering is the level whose answers count at a scope.
type answering struct {
	*tree
	below bool // it corrects by a word of its own: answers to calls of scopes below it count too
}

var defaultAnswers = &tree{ScopeConfig: ScopeConfig{Answers: AnswersHeed}}

// under returns what counts at the next level, which layers cover. A value at a level replaces all values above it.
func (a answering) under(layers []*tree) answering {
	if t := lastWith(layers, func(t *tree) bool { return t.Answers != "" }); t != nil {
		return answering{t, t.Answers.Correct()}
	}
	return a
}

func (p *Policy) answering(s Scope) answering {
	a := answering{tree: defaultAnswers}
	p.visit(s, func(_ Scope, layers []*tree) { a = a.under(layers) })
	return a
}

// Answers returns how an API's answers affect a scope: the value of the lowest level of its path that has one, else AnswersHeed.
func (p *Policy) Answers(s Scope) Answers { return p.answering(s).Answers }

// Corrects returns how far answers correct the rules at the level of a scope, with every default written out. A value at a level
// replaces all values above it as a whole.
func (p *Policy) Corrects(s Scope) Corrects { return p.answering(s).Corrects.WithDefaults() }

// Refusals returns how refusals of a scope's calls are treated, with every default written out. A value at a level replaces all
// values above it as a whole.
func (p *Policy) Refusals(s Scope) Refusals { return p.answering(s).Refusals.WithDefaults() }

// ResetUnit returns the unit of resets that are plain numbers, in answers to a scope's calls: a second or a millisecond, or 0 if
// no level names it. A value at a level replaces all values above it as a whole.
func (p *Policy) ResetUnit(s Scope) time.Duration { return p.Reader(s).ResetUnit }

// Reader returns what reads the answers to a scope's calls. Those to calls of a pool's member may say that its key is not accepted, or
// has no credit: if no table of the scope says what they mean, the member is in quarantine.
func (p *Policy) Reader(s Scope) upstream.Reader {
	r := p.answering(s).reader
	if _, pool, is := p.poolAbove(s); is {
		r.Tables = append(slices.Clip(r.Tables), pool.quarantine())
	}
	return r
}

// WaitsFor returns which scope waits for a refused call of a scope, and the rule that the answer names, if it names one of the
// policy: where the answer says (Hint.Where), else where Reasons have one of its names, else at the level of the rule that has one
// (Rule.Vendor), else the scope of the call. That is also what waits if the answer says a level that is not on the call's path.
func (p *Policy) WaitsFor(s Scope, hint upstream.Hint) (waits Scope, named MatchedRule, is bool) {
	where := cmp.Or(hint.Where, p.Reader(s).ScopeFor(hint.Names))
	waits = p.levelOf(s, where)
	bounds, _ := p.Match(s)
	for _, b := range bounds {
		if b.Names(hint.Names...) && (where == "" || b.Scope == waits) {
			waits, named, is = b.Scope, b, true
		}
	}
	return waits, named, is
}

// Names reports whether one of these names is what an API calls the limit of the rule.
func (b MatchedRule) Names(names ...string) bool {
	return b.Rule.Vendor != "" && slices.ContainsFunc(names, func(name string) bool { return strings.EqualFold(name, b.Rule.Vendor) })
}

// levelOf returns the level of a scope's path that a value of upstream.Case.Scope names, and the scope itself for none.
func (p *Policy) levelOf(s Scope, where string) Scope {
	names, levels := s.Names(), strings.Split(where, "/")
	switch where {
	case "", upstream.ScopeHere:
		return s
	case upstream.ScopeTop:
		if pool, _, is := p.poolAbove(s); is { // each member has an account of its own, or shares it with those beside it
			return s.Prefix(pool.Len() + 1)
		}
		levels = SplitPlace(p.answering(s).path)
	}
	if len(levels) > len(names) || levels[0] == "" {
		return s
	}
	for i, name := range levels {
		if OneName(name) && name != names[i] {
			return s
		}
	}
	return s.Prefix(len(levels))
}
