package page

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/headway-go/headway/throttle/policystore"
	"github.com/headway-go/headway/worker/control"
)

// history is the kept versions, and the changes of waiting tasks, newest first.
type history struct {
	changes []policystore.Change
	actions []control.Action
	hidden  bool // the Redis user of the page may not read the actions
}

// mostActions is how many changes of waiting tasks the screen lists.
const mostActions = 50

func (h *handler) loadHistory(ctx context.Context, _ url.Values, _ any) (any, error) {
	var all history
	for change, err := range h.store.Changes(ctx) {
		if err != nil {
			return nil, err
		}
		all.changes = append(all.changes, change)
	}
	slices.Reverse(all.changes)
	var err error
	if all.actions, err = h.service.AllActions(ctx); errors.Is(err, control.ErrActionsHidden) {
		all.hidden, err = true, nil
	}
	return &all, err
}

// changeRow is a version in the list.
type changeRow struct {
	control.VisibleChange
	Current  bool
	Rollback bool // the actor may return to it
}

type historyData struct {
	Filter    string
	Rows      []changeRow
	All       int
	Pages     pages
	Actions   []control.Action // changes of waiting tasks
	Older     int              // of them, which are not listed
	NoActions bool             // the page's Redis user may not read them
}

// visibleChanges returns the changes of which an actor may see a part, reduced to that part.
func (h *handler) visibleChanges(actor Actor, all *history) (rows []changeRow) {
	mayRollback := h.service.MaySomewhere(actor, control.VerbRollback) == nil // only its preview shows what it changes
	for i, c := range all.changes {
		seen, some := h.service.VisibleChange(actor, c)
		if !some {
			continue
		}
		rows = append(rows, changeRow{seen, i == 0, i > 0 && seen.Hidden == 0 && mayRollback})
	}
	return rows
}

// readChanges returns the changes of which an actor may see a part, as they are now.
func (h *handler) readChanges(r *http.Request, actor Actor) ([]changeRow, error) {
	st := h.hub.get(r.Context(), h.screens()["/history"].topic(r, actor))
	if st.data == nil || st.err != nil {
		return nil, cmp.Or(st.err, r.Context().Err())
	}
	return h.visibleChanges(actor, st.data.(*history)), nil
}

func (h *handler) historyView(r *http.Request, actor Actor, data any) (any, string, error) {
	d := historyData{Filter: field(r, "q")}
	rows := h.visibleChanges(actor, data.(*history))
	d.All = len(rows)
	rows = slices.DeleteFunc(rows, func(c changeRow) bool { return !c.mentions(d.Filter) })
	d.Rows, d.Pages = pageOf(rows, r)
	actions := slices.DeleteFunc(h.service.VisibleActions(actor, data.(*history).actions), func(a control.Action) bool {
		return !anyMatches(slices.Concat([]string{a.By, a.Verb, a.Scope, a.To, a.Reason}, a.Scopes, a.TaskIDs), d.Filter)
	})
	d.Actions = actions[:min(mostActions, len(actions))]
	d.Older = len(actions) - len(d.Actions)
	d.NoActions = data.(*history).hidden
	return d, "History", nil
}

// mentions reports whether the author, a scope or the reason of a change contains the filter.
func (c *changeRow) mentions(filter string) bool {
	v := c.Version
	texts := []string{v.By, v.User, v.Change, v.Reason, strconv.FormatInt(v.Number, 10)}
	for _, d := range c.Differences {
		texts = append(texts, d.Scope, d.Rule)
	}
	return anyMatches(texts, filter)
}

func anyMatches(texts []string, filter string) bool {
	return slices.ContainsFunc(texts, func(text string) bool { return matches(text, filter) })
}

// auditLine is a line of the export; docs/page.md has its fields.
type auditLine struct {
	Version int64         `json:"version"`
	At      control.Time  `json:"at"`
	By      string        `json:"by"`
	User    string        `json:"user,omitempty"`
	Via     string        `json:"via,omitempty"`
	Change  string        `json:"change"`
	Reason  string        `json:"reason,omitempty"`
	Changes []auditChange `json:"changes"`
}

type auditChange struct {
	Scope  string `json:"scope"`
	Rule   string `json:"rule"`
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`
	Until  string `json:"until,omitempty"`
}

// export writes the history as NDJSON, oldest first.
func (h *handler) export(w http.ResponseWriter, r *http.Request, actor Actor) error {
	rows, err := h.readChanges(r, actor)
	if err != nil {
		return err
	}
	slices.Reverse(rows)
	filter := field(r, "q")
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("Content-Disposition", `attachment; filename="headway-history.ndjson"`)
	enc := json.NewEncoder(w)
	for _, row := range rows {
		if !row.mentions(filter) {
			continue
		}
		v := row.Version
		line := auditLine{Version: v.Number, At: control.At(v.At), By: v.By, User: v.User, Via: v.Via, Change: v.Change, Reason: v.Reason, Changes: []auditChange{}}
		for _, d := range row.Differences {
			line.Changes = append(line.Changes, auditChange{d.Scope, d.Rule, d.Before, d.After, control.At(d.AfterUntil).String()})
		}
		if enc.Encode(line) != nil {
			break // the reader has closed the connection
		}
	}
	return nil
}
