package policy

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"time"

	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/internal/duration"
)

// ruleCheck finds every fault of one rule.
type ruleCheck struct {
	*draftRule
	path   func() string // of the rule; built only when there is a fault
	faults *diag.Faults
}

// fault reports a fault of a field at the place of the field, and of a missing field at the place of
// its rule.
func (c ruleCheck) fault(f field, format string, args ...any) {
	reason := fmt.Sprintf("%v %s", f, fmt.Sprintf(format, args...))
	w := &c.fields[f]
	if !w.set {
		c.faults.Add(c.at, c.path(), reason)
		return
	}
	w.bad = true
	c.faults.Add(w.at, c.path()+"."+f.String(), reason)
}

// run checks the rule. A field that already has a fault counts as present, and its value is not
// used, so that one mistake is one fault.
func (c ruleCheck) run() {
	c.checkName()
	if c.rule.Unlimited {
		c.checkUnlimited()
		return
	}
	c.checkAlgorithm()
	// If "unlimited" itself has a fault, it is unknown which fields are missing.
	if !c.fields[fieldUnlimited].bad {
		c.checkRequired()
	}
	c.checkCompany()
	c.checkNumber(fieldLimit, c.rule.Limit, 0, MaxLimit)
	c.checkNumber(fieldBurst, c.rule.Burst, 1, MaxLimit)
	c.checkNumber(fieldRollover, c.rule.Rollover, 0, MaxLimit)
	c.checkTime(fieldPer, c.rule.Per, minTime, MaxTime)
	c.checkTime(fieldLease, c.rule.Lease, minLease, maxLease)
	c.checkTime(fieldMargin, c.rule.Margin, minTime, MaxTime)
	c.checkTime(fieldMaxWait, c.rule.MaxWait, minTime, MaxTime)
	c.checkOnRedisError()
	c.checkMargin()
	c.checkBucket()
	c.checkZones()
	c.checkUnit()
}

func (c ruleCheck) checkName() {
	w := c.fields[fieldName]
	switch {
	case !w.set:
		c.fault(fieldName, "is missing; every rule needs one, such as account")
	case !w.bad:
		switch reason := diag.NameReason(c.rule.Name); {
		case reason != "":
			c.fault(fieldName, "%s", reason)
		case strings.HasSuffix(c.rule.Name, ":"): // owner: is a field of the scope in the history
			c.fault(fieldName, "%q ends in a colon, as only the fields of a scope do; leave the colon out", diag.Clip(c.rule.Name))
		}
	}
}

// checkUnlimited rejects every field that has no meaning in a removal.
func (c ruleCheck) checkUnlimited() {
	for f := range fieldCount {
		if f != fieldName && f != fieldUnlimited && c.fields[f].set && !c.fields[f].bad {
			c.fault(f, "stands beside unlimited, which removes the rule; remove one of the two")
		}
	}
}

func (c ruleCheck) checkRequired() {
	if !c.fields[fieldAlgorithm].set {
		c.fault(fieldAlgorithm, "is missing; write %s", diag.OneOf(words["algorithm"]))
	}
	if !c.fields[fieldLimit].set {
		c.fault(fieldLimit, "is missing; write a whole number, or unlimited: true to remove an inherited rule")
	}
	if !c.fields[fieldAlgorithm].good() {
		return
	}
	if windowed := c.rule.Algorithm != Concurrency && c.rule.Algorithm != Calendar; windowed && !c.fields[fieldPer].set {
		c.fault(fieldPer, "is missing; write the length of the window, such as 1s")
	}
	if c.rule.Algorithm == Calendar && c.rule.Resets == nil && !c.fields[fieldResets].bad {
		c.fault(fieldResets, `is missing; write when a period begins, such as "0 0 * * *" or @monthly`)
	}
}

func (c ruleCheck) checkAlgorithm() {
	w := c.fields[fieldAlgorithm]
	switch {
	case !w.good() || slices.Contains(words["algorithm"], string(c.rule.Algorithm)):
	default:
		c.fault(fieldAlgorithm, "is %s; %s", quote(string(c.rule.Algorithm)), diag.Meant(string(c.rule.Algorithm), words["algorithm"]))
	}
}

// company lists the fields that do not go with every algorithm, each with the algorithms that it
// goes with.
var company = []struct {
	field      field
	algorithms []Algorithm
}{
	{fieldPer, []Algorithm{TokenBucket, SlidingWindow, FixedWindow}},
	{fieldOpensOnUse, []Algorithm{FixedWindow}},
	{fieldBurst, []Algorithm{TokenBucket}},
	{fieldLease, []Algorithm{Concurrency}},
	{fieldMargin, []Algorithm{TokenBucket, SlidingWindow, FixedWindow, Calendar}},
	{fieldResets, []Algorithm{Calendar}},
	{fieldRollover, []Algorithm{Calendar}},
	{fieldSpread, []Algorithm{Calendar}},
	{fieldUnit, []Algorithm{TokenBucket, SlidingWindow, FixedWindow, Calendar}},
}

func (c ruleCheck) checkCompany() {
	if !c.fields[fieldAlgorithm].good() {
		return
	}
	for _, row := range company {
		if c.fields[row.field].set && !slices.Contains(row.algorithms, c.rule.Algorithm) {
			c.fault(row.field, "does not go with %s; remove it", c.rule.Algorithm)
		}
	}
	if c.fields[fieldTimezone].set && !c.fields[fieldActive].set && c.rule.Algorithm != Calendar {
		c.fault(fieldTimezone, "does not go with %s that always holds; remove it", c.rule.Algorithm)
	}
}

func (c ruleCheck) checkNumber(f field, n, least, most int64) {
	w := c.fields[f]
	switch {
	case !w.good():
	case n < least:
		c.fault(f, "is %s; the least is %d", w.text, least)
	case n > most:
		c.fault(f, "is %s; the most is %d", w.text, most)
	}
}

func (c ruleCheck) checkTime(f field, d, least, most time.Duration) {
	w := c.fields[f]
	switch {
	case !w.good():
	case d < least:
		c.fault(f, "is %s; the least is %s", w.text, duration.Format(least))
	case d > most:
		c.fault(f, "is %s; the most is %s", w.text, duration.Format(most))
	case d%time.Microsecond != 0:
		below := d.Truncate(time.Microsecond)
		c.fault(f, "is %s, and limits count whole microseconds; write %s or %s",
			w.text, duration.Format(below), duration.Format(below+time.Microsecond))
	}
}

func (c ruleCheck) checkOnRedisError() {
	w := c.fields[fieldOnRedisError]
	if w.good() && !slices.Contains(words["on_redis_error"], string(c.rule.OnRedisError)) {
		c.fault(fieldOnRedisError, "is %s; %s", quote(string(c.rule.OnRedisError)), diag.Meant(string(c.rule.OnRedisError), words["on_redis_error"]))
	}
}

// checkMargin requires a margin below per, and below half of per for a fixed window: a larger one
// would leave nothing to admit. The periods of a calendar vary, so the shortest possible period
// counts.
func (c ruleCheck) checkMargin() {
	if c.rule.Algorithm == Calendar && c.fields[fieldMargin].good() && c.rule.Margin >= shortestPeriod/2 {
		c.fault(fieldMargin, "is %s; with calendar it must be less than %s, half of the shortest period that cron has",
			c.fields[fieldMargin].text, duration.Format(shortestPeriod/2))
	}
	if !c.fields[fieldMargin].good() || !c.fields[fieldPer].good() || !c.fields[fieldAlgorithm].good() {
		return
	}
	margin, per := c.fields[fieldMargin].text, c.fields[fieldPer].text
	switch {
	case c.rule.Algorithm == FixedWindow && c.rule.Margin >= c.rule.Per-c.rule.Margin:
		c.fault(fieldMargin, "is %s; in a fixed window it must be less than half of per (%s)", margin, per)
	case c.rule.Margin >= c.rule.Per:
		c.fault(fieldMargin, "is %s; it must be less than per (%s)", margin, per)
	}
}

// maxBucket is the longest time that a token bucket may take to fill, in microseconds. The scripts
// count in doubles, which are exact below 2^53.
const maxBucket = 1<<52 - 1

// checkBucket rejects a bucket that the scripts could not count exactly.
func (c ruleCheck) checkBucket() {
	r := c.rule
	if r.Algorithm != TokenBucket || r.Limit == 0 ||
		!c.fields[fieldLimit].good() || !c.fields[fieldPer].good() || c.fields[fieldBurst].bad {
		return
	}
	per := uint64(r.Per.Microseconds())
	perUnit := (per + uint64(r.Limit) - 1) / uint64(r.Limit)
	high, fill := bits.Mul64(uint64(r.Capacity()), perUnit)
	if high == 0 && fill <= maxBucket {
		return
	}
	f := fieldLimit
	if c.fields[fieldBurst].set {
		f = fieldBurst
	}
	c.fault(f, "is %s, and burst x per / limit is longer than 142 years; lower burst or per, or raise limit",
		c.fields[f].text)
}

// checkZones rejects a rule with two time zones: limits.yaml has one field for both.
func (c ruleCheck) checkZones() {
	if c.rule.Resets == nil || c.rule.Active == nil || !c.fields[fieldResets].good() || !c.fields[fieldActive].good() {
		return
	}
	if resets, active := c.rule.Resets.Zone(), c.rule.Active.Zone(); resets != active {
		c.fault(fieldActive, "is in time zone %s, and resets in %s; a rule has one", active, resets)
	}
}

func (c ruleCheck) checkUnit() {
	if !c.fields[fieldUnit].good() {
		return
	}
	if reason := unitReason(c.rule.Unit); reason != "" {
		c.fault(fieldUnit, "%s", reason)
	}
}
