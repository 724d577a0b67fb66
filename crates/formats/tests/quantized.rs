//! Quantised safetensors: every weight as the published decoder has it, bit for bit (`tools/goldens/quantized_weights.py`,
//! `act_order_weights.py`, `fp4_weights.py`).

use std::path::{Path, PathBuf};

use bytes::Bytes;
use formats::{Checkpoint, safetensors::Safetensors};
use half::{bf16, f16};
use tensor::WeightFormat;

/// Every case, what it is read as, and whether that is exact.
const CASES: [(&str, &str, WeightFormat, bool); 39] = {
    use WeightFormat::{F16, FP8, MXFP4, NVFP4, Q4_0, Q5_0, Q8_0};
    [
        ("gptq_int4", "GPTQ INT4", Q5_0, true),
        ("gptq_int4_symmetric", "GPTQ INT4", Q4_0, true),
        ("gptq_int4_v2", "GPTQ INT4", Q5_0, true),
        ("gptq_int4_act_order", "GPTQ INT4", F16, false),
        ("gptq_int4_f32_scales", "GPTQ INT4", F16, false),
        ("gptq_int2", "GPTQ INT2", Q5_0, true),
        ("gptq_int3_symmetric", "GPTQ INT3", Q4_0, true),
        ("gptq_int8_symmetric", "GPTQ INT8", Q8_0, true),
        ("gptq_int8", "GPTQ INT8", F16, false),
        ("awq_int4", "AWQ INT4", Q5_0, true),
        ("packed_int4_group", "INT4", Q4_0, true),
        ("packed_int4_zeros", "INT4", Q5_0, true),
        ("packed_int4_channel", "INT4", Q4_0, true),
        ("packed_int4_narrow", "INT4", F16, false),
        ("packed_int4_group_16", "INT4", F16, false),
        ("packed_int8_group", "INT8", Q8_0, true),
        ("int8_channel", "INT8", Q8_0, true),
        ("int8_channel_zeros", "INT8", F16, false),
        ("fp8_tensor", "FP8 E4M3", FP8, false),
        ("fp8_channel", "FP8 E4M3", FP8, true),
        ("fp8_block", "FP8 E4M3", FP8, true),
        ("fp8_transformers_block", "FP8 E4M3", F16, false),
        ("fp8_transformers_tensor", "FP8 E4M3", FP8, false),
        ("nvfp4", "NVFP4", NVFP4, false),
        ("nvfp4_modelopt", "NVFP4", NVFP4, true),
        ("mxfp4", "MXFP4", MXFP4, true),
        ("mxfp4_gpt_oss", "MXFP4", MXFP4, true),
        ("mxfp4_gpt_oss_wide", "MXFP4", MXFP4, true),
        ("packed_int4_group_128", "INT4", Q4_0, true),
        ("packed_int4_group_128_zeros", "INT4", Q5_0, true),
        ("packed_int4_act_order", "INT4", F16, false),
        ("packed_int4_act_order_zeros", "INT4", F16, false),
        ("gptq_int4_group_128_act_order", "GPTQ INT4", F16, false),
        ("awq_int4_group_128", "AWQ INT4", Q5_0, true),
        ("fp4_group_32", "FP4 E2M1", Q5_0, true),
        ("fp4_group_64", "FP4 E2M1", Q5_0, true),
        ("fp4_group_128", "FP4 E2M1", Q5_0, true),
        ("fp4_group_256", "FP4 E2M1", Q5_0, true),
        ("fp4_small_scales", "FP4 E2M1", F16, false),
    ]
};

fn folder(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/quantized").join(case)
}

fn read(case: &str, file: &str) -> Bytes {
    let path = folder(case).join(file);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).into()
}

fn open(case: &str) -> Checkpoint {
    let files = ["config.json", "model.safetensors"].map(|file| (file, read(case, file)));
    Checkpoint::from_bytes(&files, &[]).unwrap_or_else(|error| panic!("{case}: {error}"))
}

#[test]
fn weights_are_those_of_the_published_decoders() {
    for (case, type_name, format, exact) in CASES {
        let checkpoint = open(case);
        let expected = Safetensors::read(read(case, "expected.safetensors")).unwrap();
        let infos: Vec<_> = checkpoint.tensor_infos().collect();
        assert_eq!(infos.len(), expected.tensors().len(), "{case}");
        let (info, expected) = (&infos[0], expected.read_tensor(&expected.tensors()[0]).unwrap());
        assert_eq!(info.type_name, type_name, "{case}");
        assert_eq!((info.format, info.exact), (Some(format), exact), "{case}");
        let tensor = checkpoint.tensor(&info.name).unwrap();
        assert_eq!((tensor.format(), tensor.shape()), (format, expected.shape()), "{case}");
        for (i, (found, expected)) in tensor.to_f32().into_iter().zip(expected.to_f32()).enumerate() {
            let off = match format {
                // Scales of FP8 are rounded to eleven bits.
                WeightFormat::FP8 => expected.abs() / 2047.0,
                // A quotient is rounded, and then a product.
                WeightFormat::NVFP4 => expected.abs() * 2.0 * f32::EPSILON,
                _ => 0.0,
            };
            assert!((found - round(format, expected)).abs() <= off, "{case} {i}: {found}, not {expected}");
            assert!(!exact || found == expected, "{case} {i}: {found} is not exactly {expected}");
        }
        checkpoint.check_finite(&info.name).unwrap();
    }
}

#[test]
fn features_in_the_order_of_their_groups_stay_packed() {
    use WeightFormat::{Q4_0, Q5_0};
    for (case, expected_format) in [
        ("gptq_int4_act_order", Q5_0),
        ("packed_int4_act_order", Q4_0),
        ("packed_int4_act_order_zeros", Q5_0),
        ("gptq_int4_group_128_act_order", Q5_0),
        // Nothing is to be sorted.
        ("gptq_int4", Q5_0),
        ("nvfp4", WeightFormat::NVFP4),
    ] {
        let mut checkpoint = open(case);
        let before = checkpoint.tensor_infos().next().unwrap();
        assert_eq!(checkpoint.order(&before.name), None, "{case}");
        checkpoint.sort_features();
        let info = checkpoint.tensor_infos().next().unwrap();
        assert_eq!(info.format, Some(expected_format), "{case}");
        let Some(order) = checkpoint.order(&info.name) else {
            assert_eq!(info, before, "{case}");
            continue;
        };
        assert!(info.exact && case.contains("act_order"), "{case}");
        let mut features = order.to_vec();
        features.sort_unstable();
        assert!(features.iter().copied().eq(0..info.shape[1] as u32) && !order.is_sorted(), "{case}");
        let tensor = checkpoint.tensor(&info.name).unwrap();
        let file = Safetensors::read(read(case, "expected.safetensors")).unwrap();
        let expected = file.read_tensor(&file.tensors()[0]).unwrap().to_f32();
        assert_eq!(tensor.format(), expected_format, "{case}");
        let rows = tensor.to_f32();
        for (row, (found, expected)) in rows.chunks(order.len()).zip(expected.chunks(order.len())).enumerate() {
            for (i, (found, &feature)) in found.iter().zip(order).enumerate() {
                assert_eq!(*found, expected[feature as usize], "{case}, row {row}, {i}");
            }
        }
        checkpoint.sort_features();
        assert_eq!(checkpoint.tensor_infos().next().unwrap(), info, "{case}: once is enough");
    }
}

#[test]
fn groups_of_unequal_size_are_expanded() {
    let case = "gptq_int4_act_order";
    let file = Safetensors::read(read(case, "model.safetensors")).unwrap();
    let at = file.tensors().iter().find(|info| info.name().ends_with("g_idx")).unwrap().range().start() as usize;
    let mut weights = read(case, "model.safetensors").to_vec();
    let group = weights[at];
    // One feature more in another group than there is room for.
    weights[at] = (group + 1) % 4;
    let files = [("config.json", read(case, "config.json")), ("model.safetensors", weights.into())];
    let mut checkpoint = Checkpoint::from_bytes(&files, &[]).unwrap();
    checkpoint.sort_features();
    let info = checkpoint.tensor_infos().next().unwrap();
    assert_eq!((info.format, checkpoint.order(&info.name)), (Some(WeightFormat::F16), None));
    assert_eq!(checkpoint.tensor(&info.name).unwrap().format(), WeightFormat::F16);
}

/// A weight in a plain format.
fn round(format: WeightFormat, weight: f32) -> f32 {
    match format {
        WeightFormat::F16 => f16::from_f32(weight).to_f32(),
        WeightFormat::BF16 => bf16::from_f32(weight).to_f32(),
        _ => weight,
    }
}

#[test]
fn what_is_expanded_is_the_published_decoders_rounded_once() {
    let mut seen = 0;
    for (case, _, format, exact) in CASES {
        let mut checkpoint = open(case);
        let before = checkpoint.tensor_infos().next().unwrap();
        let is_expanded = matches!(format, WeightFormat::FP8 | WeightFormat::NVFP4);
        assert!(!checkpoint.expand_unless(|_| true), "{case}: nothing is to be expanded");
        assert_eq!(checkpoint.expand_unless(|_| false), is_expanded, "{case}");
        let info = checkpoint.tensor_infos().next().unwrap();
        if !is_expanded {
            assert_eq!((info, exact), (before.clone(), before.exact), "{case}");
            continue;
        }
        seen += 1;
        let (tensor, format) = (checkpoint.tensor(&info.name).unwrap(), info.format.unwrap());
        assert_eq!((format, tensor.format()), (WeightFormat::F16, WeightFormat::F16), "{case}");
        let expected = Safetensors::read(read(case, "expected.safetensors")).unwrap();
        let expected = expected.read_tensor(&expected.tensors()[0]).unwrap().to_f32();
        for (i, (found, expected)) in tensor.to_f32().into_iter().zip(expected).enumerate() {
            assert!(found == round(format, expected), "{case} {i}: {found}, not {expected} in {format}");
        }
        assert!(!checkpoint.expand_unless(|_| false), "{case}: there is none any more");
        assert!(checkpoint.expand_unless(|kept| kept == before.format.unwrap()), "{case}: and as before again");
        assert_eq!(checkpoint.tensor_infos().next().unwrap(), before, "{case}");
    }
    assert!(seen >= 5, "{seen} cases");
}

/// A float-quantized checkpoint of 256 features, a row for each scale: all codes that are numbers.
fn fp8_channels(scales: &[f32], dtype: &str) -> Checkpoint {
    let codes = (0..=255u8).map(|code| if code & 0x7f == 0x7f { 0 } else { code }).collect::<Vec<_>>();
    let codes = codes.repeat(scales.len());
    let scale_bytes: Vec<u8> = match dtype {
        "F32" => scales.iter().flat_map(|scale| scale.to_le_bytes()).collect(),
        _ => scales.iter().flat_map(|&scale| bf16::from_f32(scale).to_le_bytes()).collect(),
    };
    let (rows, end) = (scales.len(), codes.len() + scale_bytes.len());
    let header = serde_json::json!({
        "x.weight": {"dtype": "F8_E4M3", "shape": [rows, 256], "data_offsets": [0, codes.len()]},
        "x.weight_scale": {"dtype": dtype, "shape": [rows, 1], "data_offsets": [codes.len(), end]},
    });
    let header = header.to_string();
    let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &codes, &scale_bytes].concat();
    let files = [("config.json", read("fp8_channel", "config.json")), ("model.safetensors", file.into())];
    Checkpoint::from_bytes(&files, &[]).unwrap()
}

/// Of each row the largest relative error, and of all the sum of squares relative to the row's scale.
fn errors(tensor: &tensor::Tensor, scales: &[f32]) -> (Vec<f64>, f64) {
    let (weights, mut squares) = (tensor.to_f32(), 0.0);
    let largest = weights.chunks_exact(256).zip(scales).map(|(row, &scale)| {
        row.iter().enumerate().fold(0f64, |largest, (code, &found)| {
            let number = if code & 0x7f == 0x7f { 0.0 } else { f64::from(tensor::quant::fp8::e4m3(code as u8)) };
            let (meant, error) = (number * f64::from(scale), (f64::from(found) - number * f64::from(scale)).abs());
            squares += (error / f64::from(scale)).powi(2);
            if meant == 0.0 { largest } else { largest.max(error / meant.abs()) }
        })
    });
    let largest = largest.collect();
    (largest, squares)
}

#[test]
fn fp8_loses_no_more_than_the_floats_that_it_was_read_as() {
    let mut state = 17u32;
    let mut random = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32
    };
    // As checkpoints have them, and to both ends of what FP8 takes: 2^-22 to 255.
    for (least, most) in [(1e-4f32, 1e-2f32), (2.4e-7, 1e-4), (1e-2, 140.0)] {
        let scales: Vec<f32> = (0..2000).map(|_| (least.ln() + random() * (most.ln() - least.ln())).exp()).collect();
        let mut checkpoint = fp8_channels(&scales, "F32");
        let info = checkpoint.tensor_infos().next().unwrap();
        assert_eq!((info.format, info.exact), (Some(WeightFormat::FP8), false), "{least}");
        let (packed, packed_squares) = errors(&checkpoint.tensor("x.weight").unwrap(), &scales);
        checkpoint.expand_unless(|_| false);
        let (expanded, expanded_squares) = errors(&checkpoint.tensor("x.weight").unwrap(), &scales);
        for ((packed, expanded), scale) in packed.iter().zip(&expanded).zip(&scales) {
            // The product of a power of two is rounded as the scale is.
            assert!(*packed <= expanded * (1.0 + 1e-9), "{scale}: {packed} > {expanded}");
        }
        assert!(packed_squares <= 1.02 * expanded_squares, "{least}: {packed_squares} > {expanded_squares}");
        // Scales of eight bits are exact.
        let rounded: Vec<f32> = scales.iter().map(|&scale| bf16::from_f32(scale).to_f32()).collect();
        let checkpoint = fp8_channels(&rounded, "BF16");
        let info = checkpoint.tensor_infos().next().unwrap();
        assert_eq!((info.format, info.exact), (Some(WeightFormat::FP8), true), "{least}");
        assert_eq!(errors(&checkpoint.tensor("x.weight").unwrap(), &rounded).1, 0.0);
    }
}

#[test]
fn scales_beyond_those_of_fp8_are_read_into_floats() {
    // 2^-22 is the least normal number of f16 in units of 2^-8.
    for (scale, fits) in
        [(1.1e-7f32, false), (3.3e-7, true), (250.1, true), (261.3, false), (0.0, true), (-0.011, true)]
    {
        let mut checkpoint = fp8_channels(&[0.01, scale, 0.02], "F32");
        let format = checkpoint.tensor_infos().next().unwrap().format.unwrap();
        assert_eq!(format == WeightFormat::FP8, fits, "{scale} as {format}");
        assert_eq!(checkpoint.expand_unless(|_| false), fits, "{scale}");
    }
}

#[test]
fn a_code_that_is_no_number_is_found() {
    for file in ["fp8_channel", "fp8_tensor"] {
        let whole = Safetensors::read(read(file, "model.safetensors")).unwrap();
        let codes = whole.tensors().iter().find(|info| info.dtype() == "F8_E4M3").unwrap().range().start();
        let mut weights = read(file, "model.safetensors").to_vec();
        weights[codes as usize + 70] = 0xff;
        let files = [("config.json", read(file, "config.json")), ("model.safetensors", weights.into())];
        let checkpoint = Checkpoint::from_bytes(&files, &[]).unwrap();
        let name = checkpoint.tensor_infos().next().unwrap().name;
        let error = messages(&checkpoint.check_finite(&name).unwrap_err());
        assert!(error.contains("NaN") && error.contains("64"), "{file}: {error}");
    }
}

#[test]
fn every_golden_is_tested() {
    let folders = std::fs::read_dir(folder("")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut folders: Vec<_> = folders.collect();
    folders.sort_unstable();
    let mut cases: Vec<_> = CASES.iter().map(|case| case.0.to_owned()).collect();
    cases.sort_unstable();
    assert_eq!(folders, cases);
}

#[test]
fn the_configuration_is_obeyed_once_and_scales_of_activations_are_left_out() {
    let checkpoint = open("nvfp4_modelopt");
    assert!(checkpoint.config.get("quantization_config").is_none());
    assert_eq!(checkpoint.quantization.as_ref().unwrap()["quant_method"], "modelopt");
    assert_eq!(checkpoint.ignored(), ["model.layers.0.mlp.up_proj.input_scale"]);
    let info = checkpoint.tensor_infos().next().unwrap();
    assert_eq!(info.source_name, "model.layers.0.mlp.up_proj.weight");
    // Codes, scales of sixteen and the scale of the tensor.
    assert_eq!(info.bytes, 32 * 64 + 32 * 8 + 4);
    // ModelOpt also writes it in a file of its own.
    let files = [
        ("config.json", Bytes::from_static(b"{}")),
        ("hf_quant_config.json", Bytes::from_static(br#"{"quantization": {"quant_algo": "NVFP4", "group_size": 16}}"#)),
        ("model.safetensors", read("nvfp4_modelopt", "model.safetensors")),
    ];
    let other = Checkpoint::from_bytes(&files, &[]).unwrap();
    assert_eq!(other.tensor(&info.name).unwrap().bytes(), checkpoint.tensor(&info.name).unwrap().bytes());
}

#[test]
fn headers_alone_are_enough_to_look_at() {
    for (case, type_name, ..) in CASES {
        let folder = tempfile::tempdir().unwrap();
        let whole = read(case, "model.safetensors");
        let header = 8 + u64::from_le_bytes(*whole.first_chunk().unwrap()) as usize;
        std::fs::write(folder.path().join("config.json"), read(case, "config.json")).unwrap();
        std::fs::write(folder.path().join("model.safetensors"), &whole[..header]).unwrap();
        let open = |path: &Path| Ok(mapped::map(path)?);
        let checkpoint = Checkpoint::open_headers(folder.path(), &open, &[]).unwrap();
        let info = checkpoint.tensor_infos().next().unwrap();
        assert_eq!((info.type_name, info.exact), (type_name, false), "{case}");
        assert!(checkpoint.tensor(&info.name).is_err(), "{case}");
    }
}

#[test]
fn large_weights_are_decoded_by_several_threads_to_the_same_bytes() {
    // 2^21 weights, of which the first rows are those of a small one.
    let rows = 1 << 14;
    let small = Safetensors::read(read("packed_int4_group", "model.safetensors")).unwrap();
    let part = |end: &str| {
        let info = small.tensors().iter().find(|info| info.name().ends_with(end)).unwrap();
        small.tensor_bytes(info).unwrap()
    };
    let (codes, scales) = (part("weight_packed"), part("weight_scale"));
    let (codes, scales) = (codes.repeat(rows / 32), scales.repeat(rows / 32));
    let header = serde_json::json!({
        "x.weight_packed": {"dtype": "I32", "shape": [rows, 16], "data_offsets": [0, codes.len()]},
        "x.weight_scale": {"dtype": "BF16", "shape": [rows, 4], "data_offsets": [codes.len(), codes.len() + scales.len()]},
    });
    let header = header.to_string();
    let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &codes, &scales].concat();
    let files = [("config.json", read("packed_int4_group", "config.json")), ("model.safetensors", file.into())];
    let large = Checkpoint::from_bytes(&files, &[]).unwrap().tensor("x.weight").unwrap();
    let small = open("packed_int4_group").tensor("model.layers.0.mlp.up_proj.weight").unwrap();
    assert_eq!(large.shape(), [rows, 128]);
    assert!(large.bytes().chunks_exact(small.bytes().len()).all(|part| part == small.bytes()));
}

/// The messages of an error, from the outermost on.
fn messages(error: &dyn std::error::Error) -> String {
    let cause = error.source().map(|cause| format!(": {}", messages(cause))).unwrap_or_default();
    format!("{error}{cause}")
}

/// The files of a case with `from` replaced by `to` in one of them, of the same length in weights.
fn changed(case: &str, file: &str, from: &str, to: &str) -> Vec<(&'static str, Bytes)> {
    let files = ["config.json", "model.safetensors"].map(|file| (file, read(case, file)));
    let change = |(name, bytes): (&'static str, Bytes)| {
        if name != file {
            return (name, bytes);
        }
        let at = bytes.windows(from.len()).position(|window| window == from.as_bytes()).expect("it is there");
        (name, [&bytes[..at], to.as_bytes(), &bytes[at + from.len()..]].concat().into())
    };
    files.map(change).into()
}

#[test]
fn tensors_that_do_not_fit_the_configuration_are_refused_by_name() {
    let (config, weights) = ("config.json", "model.safetensors");
    let cases = [
        (
            "gptq_int4",
            config,
            "\"group_size\": 32",
            "\"group_size\": 64",
            "up_proj.scales` has the shape [4, 32], not [2, 32]",
        ),
        ("gptq_int4", config, "\"bits\": 4", "\"bits\": 8", "up_proj.scales` has the shape [4, 32], not [2, 32]"),
        ("gptq_int4", weights, "up_proj.scales", "up_proj.scalez", "there is no `model.layers.0.mlp.up_proj.scales`"),
        ("gptq_int4", weights, "up_proj.qzeros", "up_proj.qzeroz", "there is no `model.layers.0.mlp.up_proj.qzeros`"),
        (
            "awq_int4",
            config,
            "\"group_size\": 64",
            "\"group_size\": -1",
            "up_proj.scales` has the shape [2, 32], not [1, 32]",
        ),
        ("awq_int4", weights, "\"F16\"", "\"I16\"", "up_proj.scales` is I16, not F16 or BF16 or F32"),
        (
            "packed_int4_zeros",
            config,
            "\"num_bits\": 4",
            "\"num_bits\": 8",
            "`weight_shape` is [32, 128], which `weight_packed`",
        ),
        (
            "fp8_transformers_block",
            config,
            "[24, 48]",
            "[48, 24]",
            "up_proj.weight_scale_inv` has the shape [2, 3], not [1, 6]",
        ),
        (
            "mxfp4_gpt_oss",
            weights,
            "up_proj_scales",
            "up_proj_scalez",
            "there is no `model.layers.0.mlp.up_proj_scales`",
        ),
        ("nvfp4_modelopt", weights, "weight_scale_2", "weight_scale_3", "up_proj.weight_scale_2`"),
        ("gptq_int4", config, "\"gptq\"", "\"hqq\"", "`quant_method` is hqq, where gptq, awq, compressed-tensors, fp8"),
    ];
    for (case, file, from, to, expected) in cases {
        let error = messages(&Checkpoint::from_bytes(&changed(case, file, from, to), &[]).expect_err(to));
        assert!(error.contains(expected), "{case} with {to}: {error}");
    }
}

#[test]
fn features_of_groups_that_are_not_there_are_refused() {
    let file = Safetensors::read(read("gptq_int4_act_order", "model.safetensors")).unwrap();
    let order = file.tensors().iter().find(|info| info.name().ends_with("g_idx")).unwrap().range();
    let mut weights = read("gptq_int4_act_order", "model.safetensors").to_vec();
    weights[order.start() as usize + 4..][..4].copy_from_slice(&4u32.to_le_bytes());
    let files = [("config.json", read("gptq_int4_act_order", "config.json")), ("model.safetensors", weights.into())];
    let checkpoint = Checkpoint::from_bytes(&files, &[]).unwrap();
    let error = messages(&checkpoint.tensor("model.layers.0.mlp.up_proj.weight").unwrap_err());
    assert!(error.contains("a feature is in group 4 of 4"), "{error}");
}

#[test]
fn no_byte_of_a_header_or_a_configuration_makes_it_panic() {
    for (case, ..) in CASES {
        let files = ["config.json", "model.safetensors"].map(|file| (file, read(case, file)));
        let header = 8 + u64::from_le_bytes(*files[1].1.first_chunk().unwrap()) as usize;
        for (which, len) in [(0, files[0].1.len()), (1, header)] {
            for at in 0..len {
                let mut files = files.clone();
                let mut bytes = files[which].1.to_vec();
                bytes[at] = match bytes[at] {
                    digit @ b'0'..=b'9' => b'0' + (digit - b'0' + 3) % 10,
                    other => other ^ 1,
                };
                files[which].1 = bytes.into();
                let Ok(checkpoint) = Checkpoint::from_bytes(&files, &[]) else { continue };
                for name in checkpoint.tensor_names() {
                    let _ = checkpoint.tensor(name);
                }
            }
        }
    }
}
