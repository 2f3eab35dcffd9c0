package policy

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/internal/duration"
	"github.com/headway-go/headway/throttle/upstream"
	"github.com/headway-go/headway/throttle/upstream/dialect"
)

// The bounds of a Reading.
const (
	maxCases     = 50
	maxReasons   = 100
	maxCaseText  = 256 // bytes of each text of a case
	maxVendor    = 64  // bytes of a limit's name, as upstream.Hint.Names has them
	mostCaseWait = 24 * time.Hour
)

// reading checks how the answers of a level are read, and makes the reader for it.
func (c *checker) reading(t *tree, from *Source, path string) {
	r := &t.Reading
	if also := from.under("also"); len(r.Also) > maxCases {
		c.add(also.item(maxCases).place(), path+".also", "also has %d answers; the most is %d", len(r.Also), maxCases)
	}
	r.Also = slices.Clone(r.Also)
	for i, is := range r.Also {
		if source := from.under("also").item(i); source == nil || !source.Bad {
			c.answerCase(is, source, path+".also["+strconv.Itoa(i)+"]")
		}
	}
	c.reasons(r.Reasons, from.under("reasons"), path+".reasons")
	table := &upstream.Table{Cases: r.Also, Reasons: map[string]string{}}
	for name, scope := range r.Reasons {
		table.Reasons[strings.ToLower(name)] = scope
	}
	r.Reasons = maps.Clone(r.Reasons)
	t.reader = upstream.Reader{ResetUnit: resetUnits[r.ResetUnit]}
	if len(r.Also)+len(r.Reasons) > 0 {
		t.reader.Tables = append(t.reader.Tables, table)
	}
	if d, is := dialect.Named(r.Dialect); is {
		t.reader.Tables = append(t.reader.Tables, &d.Table)
	}
}

// reasons checks which scopes wait for limits that answers name.
func (c *checker) reasons(reasons map[string]string, from *Source, path string) {
	names, seen := slices.Sorted(maps.Keys(reasons)), map[string]bool{}
	for i, name := range names {
		at, lower := from.under(name).place(), strings.ToLower(name)
		switch fault := answerScopeFault(reasons[name]); {
		case i == maxReasons:
			c.add(at, path, "reasons has %d names; the most is %d", len(names), maxReasons)
		case vendorFault(name) != "":
			c.add(at, path, "name %s %s", quote(name), vendorFault(name))
		case seen[lower]:
			c.add(at, path, "name %s is there already, in other letters; keep one of the two", quote(name))
		case fault != "":
			c.add(at, diag.PathTo(path, name), "%s", fault)
		}
		seen[lower] = true
	}
}

// answerCase checks one row of also.
func (c *checker) answerCase(is upstream.Case, from *Source, path string) {
	fault := func(name, text string, set bool, format string, args ...any) {
		if w := from.field(name, text, set); w.good() {
			c.add(w.at, path+"."+name, name+" "+format, args...)
		}
	}
	if (from == nil || len(from.Fields) == 0) && is.Status == 0 && is.Header == "" && is.Body == "" && is.JSON == "" {
		c.add(from.place(), path, "names no answer; add a status, header, body or json")
	}
	if is.Status != 0 && (is.Status < 200 || is.Status > 599) {
		fault("status", "", true, "is %d; it must be 200 to 599", is.Status)
	}
	for _, f := range [][2]string{{"header", is.Header}, {"body", is.Body}, {"json", is.JSON}} {
		if len(f[1]) > maxCaseText {
			fault(f[0], "", true, "has %d bytes; the most is %d", len(f[1]), maxCaseText)
		}
	}
	if name, _, _ := strings.Cut(is.Header, ":"); is.Header != "" && strings.Trim(name, headerName) != "" {
		fault("header", "", true, "is %s; write the name of a field, or its name and a text, such as \"X-Error: quota\"", quote(is.Header))
	}
	c.word(from.field("means", string(is.Means), is.Means != ""), path+".means", "answers.also.means")
	switch wait := from.field("wait", duration.Format(is.Wait), is.Wait != 0); {
	case wait.good() && is.Wait < leastPause:
		fault("wait", "", true, "is %s; the least is %s", wait.text, duration.Format(leastPause))
	case wait.good() && is.Wait > mostCaseWait:
		fault("wait", "", true, "is %s; the most is %s", wait.text, duration.Format(mostCaseWait))
	}
	if reason := answerScopeFault(is.Scope); is.Scope != "" && reason != "" {
		fault("scope", "", true, "%s", reason)
	}
	if is.Means == upstream.Limited || is.Means == "" {
		return
	}
	for name, set := range map[string]bool{"wait": is.Wait != 0, "scope": is.Scope != "", "burns": is.Burns, "counts": is.Counts} {
		if set {
			fault(name, "", true, "says how calls wait, and with %s none does; remove it, or write limited", is.Means)
		}
	}
}

// headerName has the characters of the name of a header field.
const headerName = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

// answerScopeFault returns what is wrong with the scope that waits for an answer, empty for nothing.
func answerScopeFault(scope string) string {
	if scope == upstream.ScopeHere || scope == upstream.ScopeTop {
		return ""
	}
	for i, name := range strings.Split(scope, "/") {
		reason := diag.NameReason(name)
		if i == maxLevels {
			reason = fmt.Sprintf("is at level %d; the most is %d", i+1, maxLevels)
		}
		if reason != "" {
			return fmt.Sprintf("is %s, and name %d %s; other values are here and top", quote(scope), i+1, reason)
		}
	}
	return ""
}

// vendorFault returns what is wrong with a vendor's name of a limit, empty for nothing.
func vendorFault(name string) string {
	switch {
	case name == "":
		return "is empty; write what the vendor's answers call the limit, or remove it"
	case len(name) > maxVendor:
		return fmt.Sprintf("has %d bytes; the most is %d", len(name), maxVendor)
	case strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r > '~' }):
		return "has other characters than those of ASCII that are printed"
	}
	return ""
}
