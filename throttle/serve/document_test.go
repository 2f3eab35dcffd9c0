package serve

import (
	"math"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
)

// document is openapi.yaml.
type document struct{ root map[string]any }

func theDocument(t *testing.T) *document {
	t.Helper()
	d := &document{}
	must(t, yaml.Unmarshal(OpenAPI(), &d.root))
	return d
}

// at follows a path, and references.
func (d *document) at(from any, path ...string) any {
	for _, name := range path {
		from, _ = from.(map[string]any)[name]
	}
	if m, is := from.(map[string]any); is {
		if ref, is := m["$ref"].(string); is {
			return d.at(d.root, strings.Split(strings.TrimPrefix(ref, "#/"), "/")...)
		}
	}
	return from
}

// check compares an answer with the schema of its path and status.
func (d *document) check(t *testing.T, path string, status int, answer any) {
	t.Helper()
	of := d.at(d.root, "paths", path)
	if of == nil {
		of = map[string]any{"post": map[string]any{"responses": d.at(d.root, "components", "responses")}}
	}
	response := d.at(of, "post", "responses", strconv.Itoa(status))
	if response == nil {
		t.Errorf("%s: openapi.yaml has no %d", path, status)
		return
	}
	for _, fault := range d.faults(d.at(response, "content", "application/json", "schema"), answer, path) {
		t.Errorf("%d: %s", status, fault)
	}
}

// faults returns how a value departs from a schema.
func (d *document) faults(schema, value any, at string) (faults []string) {
	s, _ := d.at(schema).(map[string]any)
	kind := map[string]bool{}
	switch v := value.(type) {
	case map[string]any:
		kind["object"] = true
		props, _ := s["properties"].(map[string]any)
		for _, name := range listOf(s["required"]) {
			if _, has := v[name]; !has {
				faults = append(faults, at+": "+name+" is missing")
			}
		}
		for name, value := range v {
			if of, known := props[name]; known {
				faults = append(faults, d.faults(of, value, at+"."+name)...)
			} else if s["additionalProperties"] == false {
				faults = append(faults, at+": "+name+" is in no schema")
			}
		}
	case []any:
		kind["array"] = true
		for _, item := range v {
			faults = append(faults, d.faults(s["items"], item, at+"[]")...)
		}
	case string:
		kind["string"] = s["enum"] == nil || slices.Contains(listOf(s["enum"]), v)
	case bool:
		kind["boolean"] = true
	case float64:
		kind["integer"] = v == math.Trunc(v)
	}
	if is, _ := s["type"].(string); !kind[is] {
		faults = append(faults, at+" is not of type "+is)
	}
	return faults
}

func listOf(v any) (names []string) {
	list, _ := v.([]any)
	for _, item := range list {
		names = append(names, item.(string))
	}
	return names
}

// The document has the paths, the fields and the required fields that the server has, and no others.
func TestDocument(t *testing.T) {
	t.Parallel()
	d, h := theDocument(t), newAPI(t, nil).h.(*Handler)
	paths := d.root["paths"].(map[string]any)
	for name := range h.calls {
		if paths[apiPath+name] == nil {
			t.Errorf("openapi.yaml lacks %s", name)
		}
	}
	if len(paths) != len(h.calls) {
		t.Errorf("it has %d paths, the server %d", len(paths), len(h.calls))
	}
	for schema, body := range map[string]reflect.Type{
		"Ask": reflect.TypeFor[ask](), "Reserve": reflect.TypeFor[askAndKeep](), "Lease": reflect.TypeFor[askLease](), "Ref": reflect.TypeFor[ref](),
		"Settle": reflect.TypeFor[settlement](), "Report": reflect.TypeFor[apiAnswer](), "Decision": reflect.TypeFor[decision](), "Done": reflect.TypeFor[done](),
		"Settled": reflect.TypeFor[settled](), "SettledRule": reflect.TypeFor[settledRule](), "Reported": reflect.TypeFor[reported](), "Error": reflect.TypeFor[fault](),
	} {
		var names, required []string
		for name := range d.at(d.root, "components", "schemas", schema, "properties").(map[string]any) {
			names = append(names, name)
		}
		want := fieldsOf(body)
		for _, f := range reflect.VisibleFields(body) {
			if name, options, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && options == "" {
				required = append(required, name)
			}
		}
		has := listOf(d.at(d.root, "components", "schemas", schema, "required"))
		for _, list := range [][]string{names, want, required, has} {
			slices.Sort(list)
		}
		if !slices.Equal(names, want) || !slices.Equal(has, required) {
			t.Errorf("%s has %v, %v are required; the server has %v, and requires %v", schema, names, has, want, required)
		}
	}
}

func TestDocumentIsServed(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	newAPI(t, nil).h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/openapi.yaml", nil))
	if w.Code != http.StatusOK || w.Body.String() != string(OpenAPI()) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
