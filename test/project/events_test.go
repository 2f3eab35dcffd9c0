package project

import (
	"encoding/json"
	"maps"
	"reflect"
	"testing"
	"time"

	"github.com/headway-go/headway/worker/events"
)

// docs/json.md: "A test compares the table with the code": each field of an event by its type.
func TestEventJSON(t *testing.T) {
	t.Parallel()
	var e events.Event
	v := reflect.ValueOf(&e).Elem()
	for i := range v.NumField() {
		switch f := v.Field(i); f.Interface().(type) {
		case time.Time:
			f.Set(reflect.ValueOf(time.Now()))
		case []string:
			f.Set(reflect.ValueOf([]string{"x"}))
		default:
			if f.CanInt() {
				f.SetInt(1)
			} else {
				f.SetString("x")
			}
		}
	}
	body, err := json.Marshal(e)
	must(t, err)
	want := tables(t, "The body of an event")[0]
	if got := seen(t, string(body)); !maps.Equal(got, want) {
		t.Errorf("docs/json.md has %v, the code %v", want, got)
	}
	for _, b := range parsePage("docs/json.md", section(t, "docs/json.md", "The body of an event")).blocks {
		for name := range seen(t, b.text) {
			if want[name] == "" {
				t.Errorf("the sample has a field %s that the table has not", name)
			}
		}
	}
}
