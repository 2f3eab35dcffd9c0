# Completion of p for bash, by: p completion bash
_headway_p() {
	local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} command=p i
	for ((i = 1; i < COMP_CWORD; i++)); do
		case "$command ${COMP_WORDS[i]}" in
		'p -allow-method' | 'p -level' | 'p -limits' | 'p -n' | 'p -redis' | 'p -wait' | 'p get -from') ((i++)) ;;
		'p get' | 'p put' | 'p completion') command+=" ${COMP_WORDS[i]}" ;;
		esac
	done
	COMPREPLY=()
	case "$command $previous" in
	'p -level') COMPREPLY=($(compgen -W 'info debug' -- "$current")) && return ;;
	esac
	case "$command $previous" in
	'p -allow-method' | 'p -level' | 'p -limits' | 'p -n' | 'p -redis' | 'p -wait' | 'p get -from') return ;;
	esac
	case "$command:$current" in
	'p:'-*) COMPREPLY=($(compgen -W '-allow-method -h -json -level -limits -n -redis -wait' -- "$current")) ;;
	'p:'*) COMPREPLY=($(compgen -W 'get put completion' -- "$current")) ;;
	'p get:'-*) COMPREPLY=($(compgen -W '-from -h' -- "$current")) ;;
	'p get:'*) COMPREPLY=($(compgen -W 'one all' -- "$current")) ;;
	'p put:'-*) COMPREPLY=($(compgen -W '-force -h' -- "$current")) ;;
	'p completion:'-*) COMPREPLY=($(compgen -W '-h' -- "$current")) ;;
	'p completion:'*) COMPREPLY=($(compgen -W 'bash zsh fish' -- "$current")) ;;
	esac
}
complete -o default -F _headway_p p headway-p
