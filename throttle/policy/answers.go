package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/internal/duration"
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

// Corrects bounds how far an API's answers correct the rules of a level, in whole percent. A field of
// 0 has its default.
type Corrects struct {
	// Cut is the part of its present value by which a refusal reduces a limit: 1 to 90. Defaults to 15.
	Cut int64
	// Grow is the part of the configured limit by which a limit grows in each of the rule's windows, which
	// count as a second at least: 1 to 100. Defaults to 2.
	Grow int64
	// Least is the part of the configured limit below which no refusal reduces it: 1 to 100. Defaults to
	// 10.
	Least int64
	// Most is the part of the configured limit up to which a limit grows while calls are not refused, or
	// while the API's own is larger: 100 to 1000. Defaults to 100, which raises nothing.
	Most int64
}

// Refusals is how an API's refusals are treated at a level and below it.
type Refusals struct {
	// Pause is the first pause after a refusal that names no time to come back: 100ms to 5m. Defaults to a
	// second.
	Pause time.Duration
	// Count says that a refused call counts against calendars and windows longer than an hour, as any other
	// call does. Defaults to false: its units come back.
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

// draftAnswers is the answers field of a level, as it was written.
type draftAnswers struct {
	mode     written
	corrects Corrects
	fields   [4]written // of corrects, in the order of correctsFields
	refusals Refusals
	pause    written
	count    written
	unit     written
}

// resetUnits are the units that plain numbers of resets can have, by their words.
var resetUnits = map[string]time.Duration{"s": time.Second, "ms": time.Millisecond}

// draftAnswersOf returns the draft of a level's answers, which may be written as a word or as
// fields.
func draftAnswersOf(source *Source, n ScopeConfig) draftAnswers {
	from, said := source.under("answers"), source
	d := draftAnswers{corrects: n.Corrects, refusals: n.Refusals}
	switch {
	case source == nil:
		d.mode = written{text: string(n.Answers), set: n.Answers != ""}
	case from == nil:
		return d
	case from.Fields == nil:
		d.mode, said = from.written(string(n.Answers)), from
	default:
		d.mode, said = from.field("mode", string(n.Answers), false), from
	}
	for i, f := range correctsFields {
		value := *f.of(&n.Corrects)
		d.fields[i] = said.field(f.name, strconv.FormatInt(value, 10)+"%", value != 0)
	}
	d.pause = said.field("pause", duration.Format(n.Refusals.Pause), n.Refusals.Pause != 0)
	d.count = said.field("counts", "true", n.Refusals.Count)
	d.unit = said.field("unit", n.ResetUnit, n.ResetUnit != "")
	return d
}

// checkAnswers checks the answers of a level. It returns the numbers without defaults.
func (s *draftScope) checkAnswers(path string, faults *diag.Faults) heeding {
	path += ".answers"
	d, mode, numbers := &s.answers, Answers(s.answers.mode.text), false
	if d.mode.good() && !slices.Contains(words["answers"], d.mode.text) {
		faults.Add(d.mode.at, path, fmt.Sprintf("answers is %s; %s", quote(d.mode.text), diag.Meant(d.mode.text, words["answers"])))
	}
	for i, f := range correctsFields {
		w, n := d.fields[i], *f.of(&d.corrects)
		numbers = numbers || w.set
		switch {
		case !w.good():
		case n < f.least || n > f.most:
			faults.Add(w.at, path+"."+f.name, fmt.Sprintf("%s is %s; it must be %d%% to %d%%", f.name, w.text, f.least, f.most))
		case d.mode.good() && (mode == AnswersPause || mode == AnswersIgnore):
			faults.Add(w.at, path+"."+f.name, fmt.Sprintf("%s says how rules are corrected, and with %s none is; remove it, or write heed", f.name, mode))
		}
	}
	switch p := d.refusals.Pause; {
	case !d.pause.good():
	case p < leastPause:
		faults.Add(d.pause.at, path+".pause", fmt.Sprintf("pause is %s; the least is %s", d.pause.text, duration.Format(leastPause)))
	case p > longestPause:
		faults.Add(d.pause.at, path+".pause", fmt.Sprintf("pause is %s; the most is %s", d.pause.text, duration.Format(longestPause)))
	}
	if d.unit.good() && resetUnits[d.unit.text] == 0 {
		faults.Add(d.unit.at, path+".unit", fmt.Sprintf("unit is %s; %s", quote(d.unit.text), diag.Meant(d.unit.text, words["answers.unit"])))
	}
	for i, w := range []written{d.pause, d.count, d.unit} {
		if name := []string{"pause", "counts", "unit"}[i]; w.good() && d.mode.good() && mode == AnswersIgnore {
			faults.Add(w.at, path+"."+name, name+" says what follows from an answer, and with ignore nothing does; remove it, or write pause")
		}
	}
	if !d.mode.set && (numbers || d.pause.set || d.count.set || d.unit.set) {
		mode = AnswersHeed
	}
	return heeding{answers: mode, corrects: d.corrects.bare(), refusals: d.refusals.bare(), unit: d.unit.text}
}

// heeding is the effect of answers at a level.
type heeding struct {
	answers  Answers
	corrects Corrects // without defaults
	refusals Refusals // likewise
	unit     string   // of resets that are plain numbers; "" if not named
	said     bool     // a level corrects by a word of its own: answers to calls of scopes below it count too
}

// under returns the effect at the next level, which layers cover. A value at a level replaces all
// values above it.
func (a heeding) under(layers []*tree) heeding {
	for _, layer := range layers {
		if layer.answers != "" {
			a = layer.heeding
			a.said = layer.answers.Correct()
		}
	}
	return a
}

func (p *Policy) heeding(s Scope) (a heeding) {
	a.answers = AnswersHeed
	p.visit(s, func(_ Scope, layers []*tree) { a = a.under(layers) })
	return a
}

// Answers returns how an API's answers affect a scope: the value of the lowest level of its path that
// has one, else AnswersHeed.
func (p *Policy) Answers(s Scope) Answers { return p.heeding(s).answers }

// Corrects returns how far answers correct the rules at the level of a scope, with every default
// written out. A value at a level replaces all values above it as a whole.
func (p *Policy) Corrects(s Scope) Corrects { return p.heeding(s).corrects.WithDefaults() }

// Refusals returns how refusals of a scope's calls are treated, with every default written out. A value at a level
// replaces all values above it as a whole.
func (p *Policy) Refusals(s Scope) Refusals { return p.heeding(s).refusals.WithDefaults() }

// ResetUnit returns the unit of resets that are plain numbers, in answers to a scope's calls: a second or a millisecond, or
// 0 if no level names it. A value at a level replaces all values above it as a whole.
func (p *Policy) ResetUnit(s Scope) time.Duration { return resetUnits[p.heeding(s).unit] }

// raises reports whether any level lets limits grow above the configured ones.
func (t *tree) raises() bool {
	if t.corrects.Raises() || t.every != nil && t.every.raises() {
		return true
	}
	for _, child := range t.scopes {
		if child.raises() {
			return true
		}
	}
	return false
}
