package policy

import (
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/internal/duration"
)

// ruleFields are the fields of a rule in limits.yaml. timezone is there alone: in Go, Resets and Active have their zone.
var ruleFields = []string{
	"name", "algorithm", "limit", "per", "opens_on_use", "burst", "lease", "on_redis_error", "margin", "max_wait",
	"resets", "active", "timezone", "rollover", "spread", "shadow", "unit", "cap", "vendor", "unlimited",
}

// RuleFields returns the names of the fields of a rule in limits.yaml.
func RuleFields() []string { return slices.Clone(ruleFields) }

// rules checks the rules of a scope, and returns them with their defaults.
func (c *checker) rules(rules []Rule, source *Source, scope string) (checked []Rule) {
	first := map[string]*ruleCheck{}
	for i, r := range rules {
		from := source.item(i)
		if from != nil && from.Bad {
			continue
		}
		check := &ruleCheck{checker: c, Rule: r, source: from, scope: scope, index: i}
		check.run()
		checked = append(checked, r.withDefaults())
		switch other := first[r.Name]; {
		case !check.good("name"):
		case other != nil:
			check.fault("name", "%s is taken by %s; give each rule of a list its own", quote(r.Name), other)
		default:
			first[r.Name] = check
		}
	}
	return checked
}

// ruleCheck finds every fault of one rule.
type ruleCheck struct {
	*checker
	Rule
	source *Source
	scope  string             // the path of its scope
	index  int                // in its list, as written
	bad    map[string]bool    // fields that have a fault
	made   map[string]written // fields of a rule made in Go, once they are needed
}

// String names the rule in a fault of another one.
func (c *ruleCheck) String() string {
	if line := c.source.place().Line; line > 0 {
		return fmt.Sprintf("rules[%d] on line %d", c.index, line)
	}
	return fmt.Sprintf("rules[%d]", c.index)
}

// field returns how a field is written.
func (c *ruleCheck) field(name string) written {
	w := c.source.field(name, "", false)
	if c.source == nil || w.set && w.text == "" {
		if c.made == nil {
			c.made = c.fieldsInGo()
		}
		w.text, w.set = c.made[name].text, w.set || c.source == nil && c.made[name].set
	}
	w.bad = w.bad || c.bad[name]
	return w
}

func (c *ruleCheck) good(field string) bool { return c.field(field).good() }
func (c *ruleCheck) set(field string) bool  { return c.field(field).set }

// fieldsInGo returns the fields of a rule as they are made in Go.
func (r Rule) fieldsInGo() map[string]written {
	text := func(s string) written { return written{text: quote(s), set: s != ""} }
	number := func(n int64) written { return written{text: strconv.FormatInt(n, 10), set: n != 0} }
	span := func(d time.Duration) written { return written{text: duration.Format(d), set: d != 0} }
	fields := map[string]written{
		"name": text(r.Name), "algorithm": text(string(r.Algorithm)), "limit": number(r.Limit), "per": span(r.Per), "opens_on_use": {set: r.OpensOnUse},
		"burst": number(r.Burst), "lease": span(r.Lease), "on_redis_error": text(string(r.OnRedisError)), "margin": span(r.Margin),
		"max_wait": span(r.MaxWait), "resets": {set: r.Resets != nil}, "active": {set: r.Active != nil},
		"rollover": number(r.Rollover), "spread": {set: r.Spread}, "shadow": {set: r.Shadow}, "unit": text(r.Unit), "cap": {text: strconv.FormatInt(r.Cap, 10) + "%", set: r.Cap != 0}, "vendor": text(r.Vendor),
		"unlimited": {set: r.Unlimited},
	}
	if !r.Unlimited {
		fields["limit"] = written{text: fields["limit"].text, set: true} // 0 is a limit too
	}
	return fields
}

// fault reports a fault of a field at the place of the field, and of a missing field at the place of its rule.
func (c *ruleCheck) fault(field, format string, args ...any) {
	path, w := c.scope+".rules["+strconv.Itoa(c.index)+"]", c.field(field)
	reason := field + " " + fmt.Sprintf(format, args...)
	if !w.set {
		c.Add(c.source.place(), path, reason)
		return
	}
	if c.bad == nil {
		c.bad = map[string]bool{}
	}
	c.bad[field] = true
	c.Add(w.at, path+"."+field, reason)
}

// run checks the rule. A field that already has a fault counts as present, and its value is not used, so that one mistake is one
// fault.
func (c *ruleCheck) run() {
	c.checkName()
	if c.Unlimited {
		c.checkUnlimited()
		return
	}
	c.checkWord("algorithm", string(c.Algorithm))
	// If "unlimited" itself has a fault, it is unknown which fields are missing.
	if !c.field("unlimited").bad {
		c.checkRequired()
	}
	c.checkCompany()
	c.checkNumber("limit", c.Limit, 0)
	c.checkNumber("burst", c.Burst, 1)
	c.checkNumber("rollover", c.Rollover, 0)
	checkBounds(c, "cap", c.Cap, 1, 100, func(n int64) string { return strconv.FormatInt(n, 10) + "%" })
	c.checkTime("per", c.Per, minTime, MaxTime)
	c.checkTime("lease", c.Lease, minLease, maxLease)
	c.checkTime("margin", c.Margin, minTime, MaxTime)
	c.checkTime("max_wait", c.MaxWait, minTime, MaxTime)
	c.checkWord("on_redis_error", string(c.OnRedisError))
	c.checkMargin()
	c.checkBucket()
	// limits.yaml has one time zone for both.
	if c.Resets != nil && c.Active != nil && c.good("resets") && c.good("active") && c.Resets.Zone() != c.Active.Zone() {
		c.fault("active", "is in time zone %s, and resets in %s; a rule has one", c.Active.Zone(), c.Resets.Zone())
	}
	if reason := unitReason(c.Unit); reason != "" && c.good("unit") {
		c.fault("unit", "%s", reason)
	}
	if reason := vendorFault(c.Vendor); c.good("vendor") && reason != "" {
		c.fault("vendor", "%s", reason)
	}
}

func (c *ruleCheck) checkName() {
	reason := diag.NameReason(c.Name)
	switch {
	case !c.set("name"):
		c.fault("name", "is missing; every rule needs one, such as account")
	case !c.good("name"):
	case reason != "":
		c.fault("name", "%s", reason)
	case strings.HasSuffix(c.Name, ":"): // owner: is a field of the scope in the history
		c.fault("name", "%q ends in a colon, as only the fields of a scope do; leave the colon out", diag.Clip(c.Name))
	}
}

// checkUnlimited rejects every field that has no meaning in a removal.
func (c *ruleCheck) checkUnlimited() {
	for _, f := range ruleFields {
		if f != "name" && f != "unlimited" && c.good(f) {
			c.fault(f, "stands beside unlimited, which removes the rule; remove one of the two")
		}
	}
}

func (c *ruleCheck) checkRequired() {
	if !c.set("algorithm") {
		c.fault("algorithm", "is missing; write %s", diag.OneOf(words["algorithm"]))
	}
	if !c.set("limit") {
		c.fault("limit", "is missing; write a whole number, or unlimited: true to remove an inherited rule")
	}
	if !c.good("algorithm") {
		return
	}
	if windowed := c.Algorithm != Concurrency && c.Algorithm != Calendar; windowed && !c.set("per") {
		c.fault("per", "is missing; write the length of the window, such as 1s")
	}
	if c.Algorithm == Calendar && c.Resets == nil && !c.field("resets").bad {
		c.fault("resets", `is missing; write when a period begins, such as "0 0 * * *" or @monthly`)
	}
}

// checkWord checks a field that takes one of a few words.
func (c *ruleCheck) checkWord(field, word string) {
	if c.good(field) && !slices.Contains(words[field], word) {
		c.fault(field, "is %s; %s", quote(word), diag.Meant(word, words[field]))
	}
}

// company lists the fields that do not go with every algorithm, each with the algorithms that it goes with.
var company = []struct {
	field      string
	algorithms []Algorithm
}{
	{"per", []Algorithm{TokenBucket, SlidingWindow, FixedWindow}},
	{"opens_on_use", []Algorithm{FixedWindow}},
	{"burst", []Algorithm{TokenBucket}},
	{"lease", []Algorithm{Concurrency}},
	{"margin", []Algorithm{TokenBucket, SlidingWindow, FixedWindow, Calendar}},
	{"resets", []Algorithm{Calendar}},
	{"rollover", []Algorithm{Calendar}},
	{"spread", []Algorithm{Calendar}},
	{"unit", []Algorithm{TokenBucket, SlidingWindow, FixedWindow, Calendar}},
	{"cap", []Algorithm{TokenBucket, SlidingWindow, FixedWindow, Calendar}},
}

func (c *ruleCheck) checkCompany() {
	if !c.good("algorithm") {
		return
	}
	for _, row := range company {
		if c.set(row.field) && !slices.Contains(row.algorithms, c.Algorithm) {
			c.fault(row.field, "does not go with %s; remove it", c.Algorithm)
		}
	}
	if c.set("timezone") && !c.set("active") && c.Algorithm != Calendar {
		c.fault("timezone", "does not go with %s that always holds; remove it", c.Algorithm)
	}
}

func (c *ruleCheck) checkNumber(f string, n, least int64) {
	checkBounds(c, f, n, least, MaxLimit, func(n int64) string { return strconv.FormatInt(n, 10) })
}

func (c *ruleCheck) checkTime(f string, d, least, most time.Duration) {
	checkBounds(c, f, d, least, most, duration.Format)
	if below := d.Truncate(time.Microsecond); below != d && c.good(f) {
		c.fault(f, "is %s, and limits count whole microseconds; write %s or %s",
			c.field(f).text, duration.Format(below), duration.Format(below+time.Microsecond))
	}
}

func checkBounds[T int64 | time.Duration](c *ruleCheck, f string, n, least, most T, format func(T) string) {
	w := c.field(f)
	switch {
	case !w.good():
	case n < least:
		c.fault(f, "is %s; the least is %s", w.text, format(least))
	case n > most:
		c.fault(f, "is %s; the most is %s", w.text, format(most))
	}
}

// checkMargin requires a margin below per, and below half of per for a fixed window: a larger one would leave nothing to admit.
// The periods of a calendar vary, so the shortest possible period counts.
func (c *ruleCheck) checkMargin() {
	margin, per := c.field("margin").text, c.field("per").text
	switch {
	case !c.good("margin"):
	case c.Algorithm == Calendar && c.Margin >= shortestPeriod/2:
		c.fault("margin", "is %s; with calendar it must be less than %s, half of the shortest period that cron has",
			margin, duration.Format(shortestPeriod/2))
	case !c.good("per") || !c.good("algorithm"):
	case c.Algorithm == FixedWindow && c.Margin >= c.Per-c.Margin:
		c.fault("margin", "is %s; in a fixed window it must be less than half of per (%s)", margin, per)
	case c.Margin >= c.Per:
		c.fault("margin", "is %s; it must be less than per (%s)", margin, per)
	}
}

// maxBucket is the longest time that a token bucket may take to fill, in microseconds. The scripts
// count in doubles, which are exact below 2^53.
const maxBucket = 1<<52 - 1

// checkBucket rejects a bucket that the scripts could not count exactly.
func (c *ruleCheck) checkBucket() {
	r := c.Rule
	if r.Algorithm != TokenBucket || r.Limit == 0 ||
		!c.good("limit") || !c.good("per") || c.field("burst").bad {
		return
	}
	per := uint64(r.Per.Microseconds())
	perUnit := (per + uint64(r.Limit) - 1) / uint64(r.Limit)
	high, fill := bits.Mul64(uint64(r.Capacity()), perUnit)
	if high == 0 && fill <= maxBucket {
		return
	}
	f := "limit"
	if c.set("burst") {
		f = "burst"
	}
	c.fault(f, "is %s, and burst x per / limit is longer than 142 years; lower burst or per, or raise limit",
		c.field(f).text)
}
