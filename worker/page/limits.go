package page

import (
	"cmp"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
	"github.com/headway-go/headway/worker/control"
)

// limitsData is the content of the screen of all limits.
type limitsData struct {
	Version int64
	Text    string // as a limits.yaml; empty if the actor may not see all
	May     struct{ Import, Undo bool }

	From, To string
	Compared bool
	Diffs    []policystore.Difference
	Hidden   int // differences in scopes that the actor may not see
	Fault    string
}

// limitsScreen shows the limits as a limits.yaml, and two versions compared. Costs two round trips, and four to compare.
func (h *handler) limitsScreen(w http.ResponseWriter, r *http.Request, who Actor) {
	l, err := h.limits(r.Context())
	if err != nil {
		h.failed(w, r, who, err)
		return
	}
	may := func(verb control.Verb) bool { return h.service.May(who, verb, "") == nil }
	d := &limitsData{From: strings.TrimSpace(r.FormValue("from")), To: strings.TrimSpace(r.FormValue("to"))}
	d.May.Import, d.May.Undo = may(control.VerbImport), may(control.VerbUnset)
	if l.Version != nil {
		d.Version = l.Version.Number
	}
	if may(control.VerbSee) {
		if d.Text, err = h.limitsText(r); err != nil && !errors.Is(err, policystore.ErrNone) {
			h.failed(w, r, who, err)
			return
		}
	}
	status := http.StatusOK
	if d.From != "" || d.To != "" {
		if err := h.compare(r, who, d); err != nil {
			status, d.Fault = statusOfVersion(err), control.Plain(err)
		}
	}
	h.render(w, r, status, "limits", view{Title: "Limits", Who: who, Data: d})
}

// limitsText returns the limits in force as a limits.yaml.
func (h *handler) limitsText(r *http.Request) (string, error) {
	p, err := h.store.Now(r.Context())
	if err != nil {
		return "", err
	}
	return string(limitsyaml.Format(p)), nil
}

// exportLimits writes the limits in force as a limits.yaml.
func (h *handler) exportLimits(w http.ResponseWriter, r *http.Request, who Actor) {
	_, err := h.limits(r.Context())
	if err == nil {
		err = h.service.May(who, control.VerbSee, "")
	}
	text := ""
	if err == nil {
		text, err = h.limitsText(r)
	}
	if err != nil {
		h.failed(w, r, who, err)
		return
	}
	w.Header().Set("Content-Type", "application/yaml")
	w.Header().Set("Content-Disposition", `attachment; filename="limits.yaml"`)
	_, _ = w.Write([]byte(text)) // the reader may have closed the connection
}

// compare compares two versions; without the later one, with the one that stands.
func (h *handler) compare(r *http.Request, who Actor, d *limitsData) error {
	d.To = cmp.Or(d.To, strconv.FormatInt(d.Version, 10))
	var versions [2]int64
	for i, text := range []string{d.From, d.To} {
		var err error
		if versions[i], err = strconv.ParseInt(text, 10, 64); err != nil || versions[i] < 1 {
			return &badRequest{strconv.Quote(text) + " is no version: write its number, as the history has it"}
		}
	}
	all, err := h.store.Compare(r.Context(), versions[0], versions[1])
	if err != nil {
		return err
	}
	d.Compared, d.Diffs = true, slices.DeleteFunc(all, func(one policystore.Difference) bool {
		hidden := h.service.May(who, control.VerbSee, one.Scope) != nil
		if hidden {
			d.Hidden++
		}
		return hidden
	})
	return nil
}

func statusOfVersion(err error) int {
	if errors.As(err, new(*policystore.VersionError)) || errors.As(err, new(*badRequest)) || errors.As(err, new(*policy.Error)) {
		return http.StatusUnprocessableEntity
	}
	return statusOf(err)
}
