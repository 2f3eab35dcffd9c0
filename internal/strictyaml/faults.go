package strictyaml

import (
	"go.yaml.in/yaml/v4"

	"github.com/headway-go/headway/internal/diag"
)

// Faults collects the faults of a YAML file. The zero Faults is ready to use. It is not safe for
// concurrent use.
type Faults struct{ diag.Faults }

// PlaceOf returns the place of a node.
func PlaceOf(n *yaml.Node) diag.Place {
	return diag.Place{Line: int32(n.Line), Column: int32(n.Column)}
}
