package page

import (
	"errors"
	"net/http"

	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policystore"
	"github.com/headway-go/headway/worker/control"
)

type limitsData struct {
	Version int64
	Text    string // as a limits.yaml; empty if the actor may not see all
	May     struct{ Import, Undo bool }
}

// limitsScreen shows the limits as a limits.yaml. Costs two round trips.
func (h *handler) limitsScreen(w http.ResponseWriter, r *http.Request, actor Actor) error {
	l, err := h.limits(r.Context())
	if err != nil {
		return err
	}
	may := func(verb control.Verb) bool { return h.service.May(actor, verb, "") == nil }
	d := &limitsData{}
	d.May.Import, d.May.Undo = may(control.VerbImport), may(control.VerbUnset)
	if l.Version != nil {
		d.Version = l.Version.Number
	}
	if may(control.VerbSee) {
		if d.Text, err = h.limitsText(r); err != nil && !errors.Is(err, policystore.ErrNone) {
			return err
		}
	}
	return h.render(w, r, http.StatusOK, "limits", view{Title: "Limits", Actor: actor, Data: d})
}

func (h *handler) limitsText(r *http.Request) (string, error) {
	p, err := h.store.Now(r.Context())
	if err != nil {
		return "", err
	}
	return string(limitsyaml.Format(p)), nil
}

func (h *handler) exportLimits(w http.ResponseWriter, r *http.Request, _ Actor) error {
	text, err := h.limitsText(r)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/yaml")
	w.Header().Set("Content-Disposition", `attachment; filename="limits.yaml"`)
	_, _ = w.Write([]byte(text)) // the reader may have closed the connection
	return nil
}
