package page

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
	"github.com/headway-go/headway/worker/control"
)

type verbForm struct {
	Title, Button string
	Danger        bool
	Asks          formFields
}

type formFields struct{ Scope, Rule, Fields, For, Assigned, Text bool }

// change is a form that changes limits, with its preview.
type change struct {
	verbForm
	Verb    control.Verb
	Version int64

	Scope, Rule, For, Reason, More string

	Text           string // the limits to import
	Replace, Force bool
	Shadow         bool // whether to try it as a shadow rule first
	Fields         []ruleField
	Now            string // the current rule

	Faults   map[string]string // by field
	Fault    []string          // of the form as a whole
	Unknown  bool              // the limits do not name the scope; Force changes it anyway
	Conflict *policystore.ConflictError
	Preview  *control.Preview
	Warnings []policy.Warning // of what is imported
	Hidden   url.Values       // the form, to be sent again
}

type ruleField struct {
	Name, Label, Value, Was, Hint string
	Choices                       []string
}

// assignedLabels are the labels of the fields of a scope, and what they are for.
var assignedLabels = map[string][2]string{
	"owner":   {"Owner", "the group, or the person as user:NAME, that may pause and change this scope and those below it; empty: none"},
	"apps":    {"Applications that may spend", "names divided by commas; empty: all"},
	"hosts":   {"Hosts whose answers count", "such as api.example.com,*.example.org; empty: those of the level above"},
	"weight":  {"Weight among its siblings", "a whole number; empty: 1"},
	"shares":  {"Shares of the names below", "such as interactive:60%:2,batch:3; empty: none"},
	"answers": {"What its API's answers may change", "heed, pause, ignore, or bounds such as {most: 150%}; empty: as the level above"},
	"breaker": {"When failing calls stop it", "such as {failures: 50%, of: 20, in: 30s}; empty: never"},
}

var verbs = map[control.Verb]verbForm{
	control.VerbPause:    {"Pause %s", "Pause it", true, formFields{Scope: true, For: true}},
	control.VerbDrain:    {"Drain %s", "Pause and drain it", true, formFields{Scope: true, For: true}},
	control.VerbResume:   {"Resume %s", "Resume it", false, formFields{Scope: true}},
	control.VerbSet:      {"Set a rule of %s", "Set the rule", false, formFields{Scope: true, Rule: true, Fields: true, For: true}},
	control.VerbRemove:   {"Remove a rule of %s", "Remove the rule", true, formFields{Scope: true, Rule: true, For: true}},
	control.VerbUnset:    {"Undo the live changes of %s", "Undo them", true, formFields{Scope: true, Rule: true}},
	control.VerbReset:    {"Forget what was spent of %s", "Forget it", true, formFields{Scope: true, Rule: true}},
	control.VerbOpen:     {"Open the breaker of %s", "Open it", true, formFields{Scope: true, For: true}},
	control.VerbClose:    {"Call %s again now", "Call it", true, formFields{Scope: true}},
	control.VerbAssign:   {"Owner and shares of %s", "Assign it", false, formFields{Scope: true, Assigned: true}},
	control.VerbRollback: {"Roll the limits back", "Roll back", true, formFields{}},
	control.VerbImport:   {"Import limits", "Import them", true, formFields{Text: true}},
}

var shownFields = []ruleField{
	{Name: "algorithm", Label: "Algorithm", Choices: []string{
		string(policy.TokenBucket), string(policy.SlidingWindow), string(policy.FixedWindow), string(policy.Concurrency), string(policy.Calendar),
	}},
	{Name: "limit", Label: "Limit", Hint: "a whole number; 0 suspends"},
	{Name: "per", Label: "Per", Hint: "such as 1s, 5m or 30d"},
	{Name: "burst", Label: "Burst", Hint: "of a token bucket"},
	{Name: "unit", Label: "Unit", Hint: "requests, unless it says otherwise"},
	{Name: "max_wait", Label: "Longest wait", Hint: "such as 10m"},
}

func (h *handler) changeOf(r *http.Request) (*change, error) {
	c := &change{
		Verb: control.Verb(r.FormValue("verb")), Scope: field(r, "scope"), Rule: field(r, "rule"), For: field(r, "for"),
		Reason: field(r, "reason"), Text: r.FormValue("limits"), Replace: r.FormValue("replace") != "",
		Shadow: r.FormValue("shadow") != "", More: r.FormValue("more"), Force: r.FormValue("force") != "", Faults: map[string]string{}, Hidden: url.Values{},
	}
	c.verbForm = verbs[c.Verb]
	c.Title = strings.Replace(c.Title, "%s", c.Scope, 1)
	c.Version, _ = strconv.ParseInt(r.FormValue("version"), 10, 64)
	if c.Verb == control.VerbRollback && c.Version < 1 {
		return nil, badRequest("no version is given to return to")
	}
	if c.Asks.Fields {
		was := h.ruleFields(c.Scope, c.Rule)
		c.Now = was["text"]
		for _, f := range shownFields {
			f.Was, f.Value = was[f.Name], strings.TrimSpace(r.FormValue("field:"+f.Name))
			c.Fields = append(c.Fields, f)
		}
	}
	if c.Asks.Assigned {
		now := control.ConfigAt(h.limiter.Policy(), c.Scope)
		for _, key := range control.AssignedKeys {
			label := assignedLabels[key]
			field := ruleField{Name: key, Label: label[0], Hint: label[1], Was: control.AssignedText(now, key)}
			if field.Value = field.Was; r.Form.Has("assign:" + key) {
				field.Value = strings.TrimSpace(r.FormValue("assign:" + key))
			}
			c.Fields = append(c.Fields, field)
		}
	}
	for name, values := range r.Form {
		if name != "do" && name != "expect" {
			c.Hidden[name] = values
		}
	}
	return c, nil
}

// ruleFields returns the fields of a rule of a scope, and its whole text under "text".
func (h *handler) ruleFields(place, name string) map[string]string {
	fields := map[string]string{}
	scope := strings.ReplaceAll(place, "*", "x")
	text, is := ruleTexts(h.limiter.Policy(), scope)[[2]string{scope, name}]
	if !is || name == "" {
		return fields
	}
	var all map[string]any
	if yaml.Unmarshal([]byte(text), &all) == nil {
		for key, value := range all {
			fields[key] = fmt.Sprint(value)
		}
	}
	fields["text"] = text
	return fields
}

func (h *handler) changeFrom(c *change) (control.Change, error) {
	out := control.Change{Verb: c.Verb, Scope: c.Scope, Rule: c.Rule, Version: c.Version, Reason: c.Reason, Force: c.Force}
	if c.For != "" {
		d, err := queue.ParseDuration(c.For)
		if err != nil || d == 0 {
			c.Faults["for"] = fmt.Sprintf("%q is not a duration, such as 2h or 7d", c.For)
			return out, errFields
		}
		out.For = d
	}
	switch c.Verb {
	case control.VerbSet:
		return out, h.readRule(c, &out)
	case control.VerbAssign:
		return out, c.readAssigned(&out)
	case control.VerbImport:
		p, err := limitsyaml.Parse("limits", []byte(c.Text))
		if err != nil {
			return out, err
		}
		out.Policy, out.From, out.Replace = p, "the page", c.Replace
	}
	return out, nil
}

// readAssigned sets those fields of a scope that were typed anew.
func (c *change) readAssigned(out *control.Change) error {
	some := false
	for _, f := range c.Fields {
		if f.Value == f.Was {
			continue
		}
		some = true
		if err := control.ReadAssigned(&out.Assigned, f.Name, f.Value); err != nil {
			c.Faults[f.Name] = err.Error()
		}
	}
	switch {
	case len(c.Faults) > 0:
		return errFields
	case !some:
		c.Fault = []string{"nothing is changed: change at least one field"}
		return errFields
	}
	return nil
}

// errFields is the error for a form with faults beside its fields.
var errFields = errors.New("a field is at fault")

func (h *handler) readRule(c *change, out *control.Change) error {
	if c.Rule == "" {
		c.Faults["rule"] = "name the rule"
		return errFields
	}
	out.Fields = map[string]string{}
	if c.Shadow { // another rule beside it, with the same fields
		for key, value := range h.ruleFields(c.Scope, c.Rule) {
			if key != "text" && key != "name" {
				out.Fields[key] = value
			}
		}
		out.Fields["shadow"] = "true"
		out.Rule += "-trial"
	}
	for _, f := range c.Fields {
		if f.Value != "" {
			out.Fields[f.Name] = f.Value
		}
	}
	for line := range strings.SplitSeq(c.More, "\n") {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		key, value, is := strings.Cut(line, "=")
		if !is {
			c.Faults["more"] = fmt.Sprintf("%q is not KEY=VALUE", line)
			return errFields
		}
		out.Fields[strings.TrimSpace(key)] = strings.TrimSpace(value)
	}
	if len(out.Fields) == 0 {
		c.Faults["limit"] = "nothing is changed: give at least one field"
		return errFields
	}
	return nil
}

// changeLimits shows the form of a change or its preview, or makes the change. A rollback has only a preview.
func (h *handler) changeLimits(w http.ResponseWriter, r *http.Request, actor Actor) error {
	if _, err := h.limits(r.Context()); err != nil {
		return err
	}
	c, err := h.changeOf(r)
	if err != nil {
		return err
	}
	if r.Method == http.MethodGet && c.Verb != control.VerbRollback || r.FormValue("do") == "edit" {
		return h.render(w, r, http.StatusOK, "change", view{Title: c.Title, Actor: actor, Data: c})
	}
	wanted, err := h.changeFrom(c)
	if err == nil && r.Method == http.MethodPost && r.FormValue("do") == "make" {
		wanted.SeenVersion, _ = strconv.ParseInt(r.FormValue("expect"), 10, 64)
		var made policystore.Made
		if made, err = h.service.Apply(r.Context(), actor, wanted); err == nil {
			h.forget()
			to := h.link("/done", "version", made.Version.Number, "scope", c.Scope)
			if _, place := policy.ParseScope(c.Scope); c.Verb == control.VerbDrain && place == nil {
				to = h.link("/drain", "scope", c.Scope)
			}
			http.Redirect(w, r, to, http.StatusSeeOther)
			return nil
		}
	} else if err == nil {
		var preview control.Preview
		if preview, err = h.service.Preview(r.Context(), actor, wanted); err == nil {
			if c.Preview, c.Rule = &preview, wanted.Rule; wanted.Policy != nil {
				c.Warnings = throttle.Lint(wanted.Policy)
			}
			return h.render(w, r, http.StatusOK, "preview", view{Title: c.Title, Actor: actor, Data: c})
		}
	}
	return h.refused(w, r, actor, c, err)
}

// forget makes the next requests read everything again, after a change.
func (h *handler) forget() {
	h.following.mu.Lock()
	h.following.read = time.Time{}
	h.following.mu.Unlock()
	h.hub.forget()
}

// refused shows the form again with its faults, in the words of the command line.
func (h *handler) refused(w http.ResponseWriter, r *http.Request, actor Actor, c *change, err error) error {
	status := http.StatusUnprocessableEntity
	invalid, isPolicy := errors.AsType[*policy.Error](err)
	switch {
	case errors.Is(err, errFields):
	case errors.As(err, &c.Conflict):
		status, c.Conflict = http.StatusConflict, h.service.VisibleConflict(actor, c.Conflict)
	case errors.As(err, new(*control.ForbiddenError)):
		return err
	case errors.As(err, new(*control.UnknownScopeError)):
		c.Unknown, c.Fault = true, []string{control.Plain(err)}
	case isPolicy:
		c.faults(invalid)
	case isRefusal(err):
		c.Fault = []string{control.Plain(err)}
	default:
		status, c.Fault = http.StatusServiceUnavailable, []string{control.Plain(err)}
	}
	return h.render(w, r, status, "change", view{Title: c.Title, Actor: actor, Data: c})
}

// isRefusal reports whether the service understood a change, of limits or of tasks, and refused it.
func isRefusal(err error) bool {
	return slices.ContainsFunc([]error{policystore.ErrUnchanged, policystore.ErrNothingToReset, policystore.ErrNotPermitted, policystore.ErrNone, policy.ErrNoBreaker},
		func(refusal error) bool { return errors.Is(err, refusal) }) ||
		errors.As(err, new(*policystore.RefusedError)) ||
		errors.As(err, new(*policystore.VersionError)) || errors.As(err, new(*policystore.DamagedError)) || errors.As(err, new(*policy.ScopeError)) ||
		errors.As(err, new(*policy.UnmatchedError)) || errors.As(err, new(*control.TaskChangeError))
}

// faults puts each fault beside its field, if it has one in the form.
func (c *change) faults(err *policy.Error) {
	for _, f := range err.Faults {
		field, _, _ := strings.Cut(f.Reason, " ")
		if slices.ContainsFunc(c.Fields, func(f ruleField) bool { return f.Name == field }) && c.Faults[field] == "" {
			c.Faults[field] = f.Reason
			continue
		}
		c.Fault = append(c.Fault, f.String())
	}
}

type doneData struct {
	changeRow
	Scope string
	Undo  int64 // the version to return to, 0 if it cannot be undone
}

// done shows a change that was made, and offers to undo it if it is still the last one.
func (h *handler) done(w http.ResponseWriter, r *http.Request, actor Actor) error {
	h.forget()
	rows, err := h.readChanges(r, actor)
	if err != nil {
		return err
	}
	number, _ := strconv.ParseInt(r.FormValue("version"), 10, 64)
	i := slices.IndexFunc(rows, func(row changeRow) bool { return row.Version.Number == number })
	if i < 0 {
		return notFound("there is no version " + strconv.FormatInt(number, 10))
	}
	d := doneData{changeRow: rows[i], Scope: r.FormValue("scope")}
	if rows[i].Current && number > 1 && len(rows[i].Differences) > 0 && rows[i].Hidden == 0 {
		d.Undo = number - 1
	}
	return h.render(w, r, http.StatusOK, "done", view{Title: fmt.Sprintf("Version %d", number), Actor: actor, Data: d})
}
